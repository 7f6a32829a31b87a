"""Is a text repetitive? Are the texts of a set alike?"""
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as hs
from scipy import stats

from navira.evaluation.diversity import entropy, pooled_entropy, self_bleu

ids = hs.integers(0, 4)
ragged = hs.lists(hs.lists(ids, min_size=4, max_size=11), min_size=2, max_size=5)

def relabelled(rows): return [[7 * v + 3 for v in r] for r in rows]

def grams(row, n): return [tuple(row[i:i + n]) for i in range(len(row) - n + 1)]

def bleu(hyp, refs, max_n, epsilon):
    "Papineni et al. (2002), one hypothesis, as NLTK writes it."
    ps = []
    for n in range(1, max_n + 1):
        have, best = Counter(grams(hyp, n)), Counter()
        for r in refs: best |= Counter(grams(r, n))
        hits = sum((have & best).values())
        ps.append((hits or epsilon) / sum(have.values()))
    r = min((len(r) for r in refs), key=lambda m: (abs(m - len(hyp)), m))
    brevity = 1 if len(hyp) > r else math.exp(1 - r / len(hyp))
    return brevity * math.prod(ps)**(1 / max_n)

@given(ragged)
def test_entropy_is_scipys_and_pooling_never_lowers_it(rows):
    want = [stats.entropy(list(Counter(r).values())) for r in rows]
    np.testing.assert_allclose(entropy(relabelled(rows)), want, atol=1e-9)
    assert pooled_entropy(rows) == pytest.approx(entropy([sum(rows, [])]).item())
    square = [r[:4] for r in rows]
    assert pooled_entropy(square) >= entropy(square).mean() - 1e-9


@given(ragged, hs.integers(1, 4), hs.sampled_from([0, .1]))
def test_self_bleu_equals_its_transcription(rows, max_n, epsilon):
    want = [bleu(r, rows[:i] + rows[i+1:], max_n, epsilon) for i, r in enumerate(rows)]
    score = self_bleu(relabelled(rows), max_n, epsilon)
    assert score == pytest.approx(np.mean(want)) and 0 <= score <= 1 + 1e-12
    assert self_bleu(rows + rows, max_n, epsilon) == pytest.approx(1)
