"""How many tokens PRISM takes back, and when: its binomial, its guard and its window."""
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, strategies as hs
from scipy import stats

from navira.core import step
from navira.diffusion import n_committed
from navira.prism import binomial, prism, prism_guard, window
from navira.registry import policy
from navira.sampling import sample
from helpers.core import CORRECTING, COUPLED, DECOUPLED, N, joint6, state  # noqa: F401
from helpers.sample_api import says
from toys import ACCEPT, REJECT, Tiny, chi2

def test_a_coupled_step_draws_from_what_it_saw_and_never_reopens(joint6):
    M = joint6.mask_id
    x = (0, 1, 0, M, M, M)
    seen = []
    step(prism(n_remask=2, on=0., top_p=1.), state(x, M, 3, 6, 500), joint6, lambda
         *s: seen.append(s))
    _, before, _, cleaned, after = seen[0]
    gone = before.committed & cleaned.masked
    assert (gone.sum(1) == 2).all() and (after.masked & gone).eq(gone).all()

def k_dist(n, N, T, eta):
    sigma = max(0, min(eta, (1 - min(n / N + 1 / T, 1)) / (n / N)))
    return {K: p for K, p in enumerate(stats.binom(n, sigma).pmf(range(n + 1)))}

@pytest.mark.parametrize('eta', [.05, .3, 1.])
@pytest.mark.parametrize('i, T', [(5, 10), (7, 10), (3, 5)])
def test_k_is_binomial_in_each_row(eta, i, T):
    "Two kinds of rows in one batch: 20 free, and 8 free after a prompt of 12"
    free = torch.stack([torch.ones(20), (torch.arange(20) >= 12).float()]).bool().repeat(N // 4, 1)
    n = torch.tensor([math.ceil(20 * i / T), math.ceil(8 * i / T)]).repeat(N // 4)
    x = torch.where(free & (free.cumsum(1) > n[:, None]), 9, 1)
    k = binomial(eta)(state(x, 9, i, T, free=free))
    for row, total in ((0, 20), (1, 8)):
        dist, got = k_dist(n[row].item(), total, T, eta), Counter(k[row::2].tolist())
        assert chi2(got, dist) > ACCEPT
        # alpha must not count the prompt
        if row: assert chi2(got, k_dist(n[row].item() + 12, 20, T, eta)) < REJECT

@pytest.mark.parametrize('T', [1, 3, 7, 10, 64, 100])
@pytest.mark.parametrize('free', [1, 5, 7, 64, 100])
def test_k_is_zero_at_the_last_step_and_when_all_is_written(T, free):
    for n in {n_committed(free, T - 2, T), free}:
        st = state(torch.where(torch.arange(free) < n, 1, 9), 9, T - 1, T, 300)
        assert binomial(1.)(st).sum() == 0

@given(hs.integers(1, 30), hs.integers(1, 30), hs.integers(0, 29), hs.integers(0, 35))
def test_the_guard(N, T, i, K):
    "PRISM corrects only if R > 0, n > R and n < N - R, and never more than may stay masked"
    i = min(i, T - 1)
    n = n_committed(N, i - 1, T)
    st = state(torch.where(torch.arange(N) < n, 1, 9), 9, i, T, 1)
    got = prism_guard(K)(st).item()
    assert got == (min(K, N - n_committed(N, i, T)) if K > 0 and n > K and n < N - K else 0)

@pytest.mark.parametrize('n, K', [(3, 3), (6, 4), (7, 3), (9, 1), (4, 0)])
def test_prism_skips_where_its_guard_fails_and_navira_does_not(n, K):
    "N = 10: n > K fails, n < N - K fails (twice), one mask left, K = 0"
    x, model = torch.where(torch.arange(10) < n, 1, 4), Tiny(10, 4)
    took = {}
    for name in CORRECTING:
        def watch(_, before, p, cleaned, after): took[name] = (before.committed
                                                               & cleaned.masked).sum().item()
        after = step(policy(name, n_remask=K, on=0.), state(x, 4, n, 10, 1), model, watch)
        assert after.committed.sum() == n + 1
    assert {took[c] for c in COUPLED} == {0} and {took[d] for d in DECOUPLED} == {K}

def test_correction_is_on_from_on_to_off():
    st = lambda i, T: state([1] * 5 + [9] * 5, 9, i, T, 1)
    for T in (1, 2, 7, 10):
        for on, off in ((0., 1.), (.5, 1.), (.3, .6), (.5, .5)):
            assert [window(2, on, off)(st(i, T)).item() > 0 for i in range(T)] == [
                on * T <= i < off * T for i in range(T)
            ]

@pytest.mark.parametrize('K', [-1, math.nan, .5])
def test_a_number_of_remasks_is_a_whole_number(K):
    with says(ValueError, K): sample(Tiny(8, 4), 'navira', 16, n_remask=K, on=0.)
