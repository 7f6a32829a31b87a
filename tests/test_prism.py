"""How many tokens PRISM takes back, and when: its binomial, its guard and its window."""
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.diffusion import n_committed
from navira.prism import binomial, prism_guard, window
from helpers.core import N
from helpers.peers import state
from toys import ACCEPT, REJECT, binomial_dist, chi2


@pytest.mark.parametrize('eta', [.05, .3, 1.])
@pytest.mark.parametrize('i, T', [(5, 10), (7, 10), (3, 5)])
def test_k_is_binomial_in_each_row(eta, i, T):
    "Two kinds of rows in one batch: 20 free, and 8 free after a prompt of 12"
    free = torch.stack([torch.ones(20), (torch.arange(20) >= 12).float()]).bool().repeat(N // 4, 1)
    n = torch.tensor([math.ceil(20 * i / T), math.ceil(8 * i / T)]).repeat(N // 4)
    x = torch.where(free & (free.cumsum(1) > n[:, None]), 9, 1)
    k = binomial(eta)(state(x, 9, i, T, fixed=~free))
    for row, total in ((0, 20), (1, 8)):
        dist, got = binomial_dist(n[row].item(), total, T, eta), Counter(k[row::2].tolist())
        assert chi2(got, dist) > ACCEPT
        # alpha must not count the prompt
        if row: assert chi2(got, binomial_dist(n[row].item() + 12, 20, T, eta)) < REJECT


@given(hs.integers(1, 30), hs.integers(1, 30), hs.integers(0, 29), hs.integers(0, 35))
def test_the_guard(N, T, i, K):
    "PRISM corrects only if R > 0, n > R and n < N - R, and never more than may stay masked"
    i = min(i, T - 1)
    n = n_committed(N, i - 1, T)
    st = state(torch.where(torch.arange(N) < n, 1, 9), 9, i, T, 1)
    got = prism_guard(K)(st).item()
    assert got == (min(K, N - n_committed(N, i, T)) if K > 0 and n > K and n < N - K else 0)

@given(hs.integers(0, 100), hs.integers(0, 100), hs.sampled_from([1, 7, 20, 100, 128, 1000]))
def test_a_window_is_that_of_exact_fractions(a, b, T):
    "`.55 * 100` is above 55 in floats, so the expected steps are computed without any"
    on, off = sorted((a, b))
    exact = [i for i in range(T) if on * T <= 100 * i < off * T]
    k = window(1, on / 100, off / 100)
    assert [i for i in range(T) if k(state(torch.zeros(4).long(), 9, i, T, 1)).item()] == exact
