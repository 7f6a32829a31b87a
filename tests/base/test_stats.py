"""How sure is a number? Bootstrap intervals, Student's and Wilson's."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as hs

from navira.base.stats import bootstrap, percentiles, Ratio, resampled, resamplings, wilson
from navira.evaluation.perplexity import Perplexity


@given(hs.lists(hs.floats(-5, 5), min_size=8, max_size=40), hs.floats(.1, 10), hs.floats(-3, 3))
def test_ends_stand_on_both_sides_and_units_do_not_matter(v, scale, shift):
    low, high = bootstrap(v, n_boot=200)
    assert low <= np.mean(v) + 1e-9 and np.mean(v) - 1e-9 <= high
    np.testing.assert_allclose(bootstrap(np.full(9, shift), n_boot=200), (shift, shift))
    if np.ptp(v) < 1e-3: return
    moved = bootstrap(scale * np.array(v) + shift, n_boot=200)
    want = scale * low + shift, scale * high + shift
    np.testing.assert_allclose(moved, want, atol=1e-6, rtol=1e-6)


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
