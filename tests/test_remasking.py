"""Remasking at a temperature: Plackett-Luce, and its limits."""

import torch

from navira.core import TopK
from navira.remasking import low_probability
from helpers.core import S5, N, exact_sets, sets, state
from toys import ACCEPT, REJECT, chi2


def test_the_score_as_probability_draws_by_probabilities():
    class Fixed:
        def quality(self, where): return S5.expand(N, -1)
    st = state(torch.zeros(5, dtype=torch.long), 9, 0, 10, N)
    got = sets(TopK(low_probability, 2, .3)(st, Fixed(), torch.ones(N, 5, dtype=torch.bool)))
    assert chi2(got, exact_sets(S5.sigmoid(), .3, 2)) > ACCEPT and chi2(got,
                                                                        exact_sets(S5, .3,
                                                                                   2)) < REJECT
