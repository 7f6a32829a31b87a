"""AUROC, reliability and calibration of a quality score."""
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from navira.training.quality import auroc, auroc_interval, reliability
from helpers.training import one_thread, table  # noqa: F401

@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs(pairs):
    s, r = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])
    if r.all() or not r.any(): assert math.isnan(auroc(s, r)); return
    expect = np.mean([(a > b) + .5 * (a == b) for a in s[r] for b in s[~r]])
    assert auroc(s, r) == pytest.approx(expect)

def test_auroc_interval_is_wider_for_clustered_tokens():
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(200), 8)
    # eight copies of each token
    right = np.repeat(rng.random(200) < .5, 8); score = right + np.repeat(rng.normal(size=200), 8)
    wide, narrow = (np.diff(auroc_interval(score, right, r, n=300))[0] for r in (rows, np.arange(1600)))
    assert wide > 2 * narrow

def test_reliability_counts_everything():
    p, r = np.array([0., .05, .5, .95, 1.]), np.array([False, False, True, True, True])
    table = reliability(p, r)
    assert (
        sum(b['n'] for b in table) == 5 and [b['n'] for b in table] == [2, 1, 2]
        and all(b['low'] <= b['right'] <= b['high'] for b in table))
