"""Remasking at a temperature: Plackett-Luce, and its limits."""
import itertools

import numpy as np
import pytest
import torch

from navira.core import TopK
from navira.remasking import low_probability
from helpers.core import S5, N, exact_sets, picked, sets, state
from toys import ACCEPT, REJECT, chi2, planted

@pytest.mark.parametrize('tau', [.5, 1., 3.])
def test_two_of_five_follow_plackett_luce(tau):
    dist = exact_sets(S5, tau, 2)
    got = sets(picked(2, tau))
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
    assert chi2(got, exact_sets(-S5, tau, 2)) < REJECT
    w = (-S5 / tau).softmax(-1).tolist()
    with_replacement = {(i, j): w[i] * w[j] for i, j in dist}
    assert chi2(got, {c: q / sum(with_replacement.values()) for c,
                      q in with_replacement.items()}) < REJECT

def test_three_of_five_over_some(): assert chi2(sets(picked(3, .8, seed=4)),
                                                exact_sets(S5, .8, 3)) > ACCEPT

def test_infinite_temperature_is_uniform():
    got = sets(picked(2, 1e9))
    assert chi2(got, {c: .1 for c in itertools.combinations(range(5), 2)}) > ACCEPT
    assert picked(2, 1e9).double().mean(0).numpy() == pytest.approx(np.full(5, 2 / 5), abs=.01)
    assert chi2(sets(picked(2, 20.)), {c: .1 for c in itertools.combinations(range(5), 2)}) < REJECT


def test_the_score_as_probability_draws_by_probabilities():
    class Fixed:
        def quality(self, where): return S5.expand(N, -1)
    st = state(torch.zeros(5, dtype=torch.long), 9, 0, 10, N)
    got = sets(TopK(low_probability, 2, .3)(st, Fixed(), torch.ones(N, 5, dtype=torch.bool)))
    assert chi2(got, exact_sets(S5.sigmoid(), .3, 2)) > ACCEPT and chi2(got,
                                                                        exact_sets(S5, .3,
                                                                                   2)) < REJECT
