"""How sure is a number? Bootstrap intervals, Student's and Wilson's."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as hs
from scipy import stats

from navira.base.stats import bootstrap, holm, percentiles, Ratio, resampled, resamplings, wilson
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
def test_ends_stand_on_both_sides_and_units_do_not_matter(v, scale, shift):
    low, high = bootstrap(v, n_boot=200)
    assert low <= np.mean(v) + 1e-9 and np.mean(v) - 1e-9 <= high
    np.testing.assert_allclose(bootstrap(np.full(9, shift), n_boot=200), (shift, shift))
    if np.ptp(v) < 1e-3: return
    moved = bootstrap(scale * np.array(v) + shift, n_boot=200)
    want = scale * low + shift, scale * high + shift
    np.testing.assert_allclose(moved, want, atol=1e-6, rtol=1e-6)

def test_the_end_of_resamples_without_spread_is_students():
    v = [0.] * 7 + [1.]
    assert bootstrap(v)[1] == pytest.approx(stats.t.interval(.95, 7, np.mean(v), stats.sem(v))[1])

def test_paired_resamplings_do_not_depend_on_how_many_samples_there_are():
    assert (resamplings(30, paired=True)[:, :12] == resamplings(12, paired=True)).all()
    assert (resamplings(12)[1:].sum(1) == 12).all() and (resamplings(12)[0] == 1).all()
    v, w = np.random.default_rng(0).random((2, 40)) + 1
    v[3] = np.nan     # not judged
    assert resampled(v, w)[0] == pytest.approx(np.nansum(v) / w[~np.isnan(v)].sum())

def test_resamplings_without_a_value_push_both_ends_outwards():
    draws = np.arange(1000.)
    low, high = percentiles(draws)
    draws[[400, 500]] = np.nan
    assert percentiles(draws)[0] < low < high < percentiles(draws)[1]
    draws[:100] = np.nan
    assert all(map(math.isnan, percentiles(draws)))

@pytest.mark.parametrize('n', range(1, 10))
def test_below_eight_samples_no_interval_is_given(n):
    few = n < 8
    for ends in bootstrap(np.arange(n)), bootstrap(np.arange(20), np.arange(20) < n):
        assert [math.isnan(e) for e in ends] == [few, few]
    assert np.isnan(resampled(np.arange(n))[1:]).all() == few
    for kind in Perplexity, Ratio:
        text = repr(kind(torch.rand(n), torch.ones(n)))
        assert ('no interval below 8 samples' in text) == few

def test_a_ratio_and_a_perplexity_are_sums_over_sums():
    part, whole = torch.tensor([1., 2, 0]).repeat(4), torch.tensor([2., 2, 0]).repeat(4)
    r, p = Ratio(part, whole), Perplexity(part, whole)
    assert float(r) == r.value == 3/4 and r.interval() == bootstrap(part, whole)
    assert float(p) == p.value == pytest.approx(math.exp(3/4))
    assert p.interval() == bootstrap(part, whole, np.exp) and p.interval()[0] < p.value

@given(hs.integers(1, 400), hs.data())
def test_wilson_is_where_the_score_test_holds(n, data):
    "Its ends are the shares from which the one seen is 1.95996 standard errors away"
    share = data.draw(hs.integers(0, n)) / n
    low, high = wilson(share, n)
    for p in low, high:
        if 1e-9 < p < 1 - 1e-9:
            assert abs(share - p) == pytest.approx(1.959964 * (p * (1 - p) / n)**.5)
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1

@given(hs.lists(hs.one_of(hs.floats(0, 1), hs.just(float('nan'))), min_size=1, max_size=9))
def test_holm_rejects_step_by_step(p):
    "Its definition: the i-th smallest of m, while it is at most level / (m - i)"
    tested = sorted(v for v in p if v == v)
    rejected = set()
    for i, v in enumerate(tested):
        if v > .05 / (len(tested) - i): break
        rejected.add(v)
    got = holm(p)
    assert {v for v, q in zip(p, got) if q <= .05} == rejected
    assert [q == q for q in got] == [v == v for v in p]
