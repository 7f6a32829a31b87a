"""How many different tokens has a text?"""
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as hs
from scipy import stats

from navira.evaluation.diversity import entropy, pooled_entropy

ids = hs.integers(0, 4)
ragged = hs.lists(hs.lists(ids, min_size=4, max_size=11), min_size=2, max_size=5)

def relabelled(rows): return [[7 * v + 3 for v in r] for r in rows]

@given(ragged)
def test_entropy_is_scipys_and_pooling_never_lowers_it(rows):
    want = [stats.entropy(list(Counter(r).values())) for r in rows]
    np.testing.assert_allclose(entropy(relabelled(rows)), want, atol=1e-9)
    assert pooled_entropy(rows) == pytest.approx(entropy([sum(rows, [])]).item())
    square = [r[:4] for r in rows]
    assert pooled_entropy(square) >= entropy(square).mean() - 1e-9
