"""How sure is a number? Bootstrap intervals, Student's and Wilson's."""
import math

import numpy as np
import pytest

from navira.base.stats import percentiles, resampled, resamplings


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


