"""How sure is a number? Bootstrap intervals, and the t distribution behind them."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as hs
from scipy import stats

from navira.base.stats import Ratio, bootstrap, percentiles, resampled, resamplings, wilson
from navira.evaluation.perplexity import Perplexity

@pytest.mark.parametrize('n', [8, 16])
@pytest.mark.parametrize('draw', ['normal', 'exponential', 'ratio'])
def test_intervals_hold_what_they_say(n, draw):
    "Of 400 sets"
    rng, held = np.random.default_rng(1), 0
    for _ in range(400):
        w = rng.uniform(.5, 1.5, n) if draw == 'ratio' else np.ones(n)
        v = rng.exponential(size=n) - 1 if draw == 'exponential' else w * rng.standard_normal(n)
        low, high = bootstrap(v, w, n_boot=300)
        held += low <= 0 <= high
    assert held > .905 * 400

@given(hs.lists(hs.floats(-5, 5), min_size=8, max_size=40), hs.floats(.1, 10), hs.floats(-3, 3))
def test_intervals_of_any_values(v, scale, shift):
    "Ends are numbers on both sides of the mean, equal values have none, and units do not matter."
    lo, hi = bootstrap(v, n_boot=200); m = np.mean(v)
    assert math.isfinite(lo) and math.isfinite(hi) and lo <= m + 1e-9 and m - 1e-9 <= hi
    np.testing.assert_allclose(bootstrap(np.full(9, shift), n_boot=200), (shift, shift))
    if np.ptp(v) > 1e-3:
        moved = bootstrap(scale * np.array(v) + shift, n_boot=200)
        np.testing.assert_allclose(moved, (scale * lo + shift, scale * hi + shift), atol=1e-6, rtol=1e-6)

def test_an_interval_where_most_values_are_equal():
    "Resamples without spread: their end is Student's"
    v = [0.] * 7 + [1.]
    lo, hi = bootstrap(v)
    assert lo < 0.125 < hi
    assert math.isfinite(hi)
    assert hi == pytest.approx(stats.t.interval(0.95, 7, np.mean(v), stats.sem(v))[1])

def test_one_bootstrap_for_single_numbers_and_for_comparisons():
    "Counts of sample i do not depend on n where samples are paired; the statistic and its ends are those of 13."
    assert (resamplings(30, paired=True)[:, :12] == resamplings(12, paired=True)).all()
    assert (resamplings(12)[1:].sum(1) == 12).all() and (resamplings(12)[0] == 1).all()
    v, w = np.random.default_rng(0).random((2, 40)) + 1
    v[3] = np.nan
    draws = resampled(v, w)
    assert draws[0] == pytest.approx(np.nansum(v) / w[~np.isnan(v)].sum())

def test_resamplings_without_a_value_push_both_ends_outwards():
    draws = np.arange(1000.)
    lo, hi = percentiles(draws)
    draws[[400, 500]] = np.nan
    assert percentiles(draws)[0] < lo < hi < percentiles(draws)[1]
    draws[:100] = np.nan
    assert all(map(math.isnan, percentiles(draws)))

def test_below_eight_there_is_no_interval():
    for n in range(1, 8):
        assert all(map(math.isnan, bootstrap(np.arange(n))))
        assert all(map(math.isnan, bootstrap(np.arange(20), np.arange(20) < n)))
        assert np.isnan(resampled(np.arange(n))[1:]).all()
    assert not any(map(math.isnan, bootstrap(np.arange(8))))
    said = [repr(Perplexity(torch.rand(n), torch.ones(n))) for n in range(1, 10)]
    assert ['no interval below 8 samples' in text for text in said] == [True] * 7 + [False] * 2

def test_bootstrap():
    v, w = np.random.default_rng(0).random((2, 50)) + 1
    assert bootstrap(v, w, np.exp, seed=3) == bootstrap(torch.tensor(v), torch.tensor(w), np.exp, seed=3)
    lo, hi = bootstrap(v, w, np.exp)
    assert lo < math.exp(v.sum() / w.sum()) < hi
    assert bootstrap(v, level=.5)[0] > bootstrap(v)[0]
    np.testing.assert_allclose(bootstrap(2 * w, w), (2, 2))
    p = Perplexity(torch.tensor(v), torch.tensor(w))
    assert p.interval() == bootstrap(v, w, np.exp) and float(p) == p.value

def test_ratio():
    part, whole = torch.tensor([1, 2, 0]), torch.tensor([2, 2, 0])      # the last sample had no chance
    r = Ratio(part, whole)
    assert r.value == 3/4 == float(r) and all(map(math.isnan, r.interval()))
    assert repr(r) == 'Ratio(0.75 [no interval below 8 samples], 3 samples)'
    r = Ratio(part.repeat(4), whole.repeat(4)); lo, hi = r.interval()
    assert (lo, hi) == bootstrap([1, 2, 0] * 4, [2, 2, 0] * 4) and lo < 3/4 < hi and '12 samples' in repr(r)

@given(hs.integers(1, 400), hs.data())
def test_wilson_is_where_the_score_test_holds(n, data):
    "Its ends are the shares from which the one seen is 1.96 standard errors away"
    right = data.draw(hs.integers(0, n))
    low, high = wilson(right / n, n)
    for p in (low, high):
        if 1e-9 < p < 1 - 1e-9: assert abs(abs(right / n - p) - 1.96 * (p * (1 - p) / n)**.5) < 1e-9
    assert 0 <= low <= right / n + 1e-12 and right / n - 1e-12 <= high <= 1
