"""Is a text repetitive? Are the texts of a set alike?"""
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as hs
from scipy import stats

from navira.evaluation.diversity import distinct, entropy, grouped, pooled_entropy, repetition, self_bleu

ids = hs.integers(0, 4)

def test_entropy():
    x = torch.tensor([[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 2, 2], [1, 1, 1, 2]])
    h = -(.75 * math.log(.75) + .25 * math.log(.25))
    np.testing.assert_allclose(entropy(x), [0, math.log(4), math.log(2), h], atol=1e-12)
    np.testing.assert_allclose(entropy([[5], [1, 2, 3], np.array([0, 0])]), [0, math.log(3), 0], atol=1e-12)
    y = torch.randint(0, 50, (20, 128), generator=torch.Generator().manual_seed(0))
    assert ((entropy(y) >= 0) & (entropy(y) <= math.log(128))).all()
    np.testing.assert_allclose(entropy(y), entropy(y[:, torch.randperm(128)]), atol=1e-12)

ragged = hs.lists(hs.lists(ids, min_size=4, max_size=11), min_size=2, max_size=5)

square = hs.integers(4, 9).flatmap(lambda L: hs.lists(hs.lists(ids, min_size=L, max_size=L), min_size=2, max_size=5))

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
    return 0. if min(ps) == 0 else brevity * math.exp(sum(map(math.log, ps)) / max_n)

def test_sets_with_known_answers():
    loop, same, apart = [[1, 2] * 4], [[1, 2, 3, 4]] * 5, [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert pooled_entropy([[3] * 9] * 2) == 0 and pooled_entropy(apart) == pytest.approx(math.log(8))
    assert distinct(apart) == 1 and distinct(same) == 3 / 15 and distinct([[3] * 9] * 2) == 1 / 16
    assert self_bleu(same) == 1 and self_bleu(apart, epsilon=0) == 0 and 0 < self_bleu(apart) < .06
    assert repetition(loop + same[:1] + [[3] * 9] + [[3]]).tolist() == [6/8, 0, 8/9, 0]

@given(square)
def test_pooled_entropy(rows):
    h = pooled_entropy(rows)
    assert entropy(rows).mean() - 1e-9 <= h <= math.log(sum(map(len, rows))) + 1e-9
    assert h == pytest.approx(pooled_entropy(relabelled(rows[::-1]))) == pytest.approx(entropy([sum(rows, [])]).item())

@given(ragged, hs.integers(1, 4))
def test_distinct(rows, n):
    every = [g for r in rows for g in grams(r, n)]
    assert distinct(rows, n) == len(set(every)) / len(every) == distinct(relabelled(rows[::-1]), n)
    assert distinct(rows + rows, n) == pytest.approx(distinct(rows, n) / 2)

@given(ragged, hs.integers(1, 4), hs.sampled_from([0, .1]))
def test_self_bleu_equals_its_transcription(rows, max_n, epsilon):
    want = np.mean([bleu(r, rows[:i] + rows[i+1:], max_n, epsilon) for i, r in enumerate(rows)])
    got = self_bleu(rows, max_n, epsilon)
    assert got == pytest.approx(want) and 0 <= got <= 1 + 1e-12
    assert self_bleu(relabelled(rows[::-1]), max_n, epsilon) == pytest.approx(got)
    assert self_bleu(rows + rows, max_n, epsilon) == pytest.approx(1)

@given(ragged)
def test_repetition_equals_its_transcription(rows):
    longest = [max((n for n in range(1, len(r)) if max(Counter(grams(r, n)).values()) > 1), default=0) for r in rows]
    want = [k / len(r) for k, r in zip(longest, rows, strict=True)]
    for same in rows, relabelled(rows), [r[::-1] for r in rows]: assert repetition(same).tolist() == want
    assert repetition(rows, n=3).tolist() == [w if k >= 3 else 0 for w, k in zip(want, longest, strict=True)]

def test_ids_of_any_integer_type():
    x = torch.randint(0, 9, (6, 20), generator=torch.Generator().manual_seed(0))
    for f in (entropy, pooled_entropy, distinct, self_bleu, repetition):
        a, b, c = (f(t) for t in (x, x.numpy().astype(np.uint16), [r.tolist() for r in x.int()]))
        assert np.array_equal(a, b) and np.array_equal(a, c)

def test_bad_sets():
    for f in (pooled_entropy, distinct, self_bleu, repetition):
        for bad in [], [[]], [[.5, 1.]]:
            with pytest.raises(ValueError): f(bad)
    for call, what in [
        (lambda: distinct([[1]], n=2), 'expected at least 2'),
        (lambda: distinct([[1]], n=0), 'n=0'),
        (lambda: self_bleu([[1, 2, 3, 4]]), 'at least 2'),
        (lambda: self_bleu([[1, 2]] * 2), 'sample 0 has 2 tokens'),
        (lambda: self_bleu([[1]] * 2, max_n=0), 'max_n=0'),
        (lambda: self_bleu([[1]] * 2, 1, epsilon=2), 'epsilon=2'),
        (lambda: repetition([[1]], n=1.5), 'n=1.5'),
    ]:
        with pytest.raises(ValueError, match=what):
            call()

def test_grouped():
    v = np.random.default_rng(0).random((43, 3))
    g = grouped(lambda a: a[:, 0].mean(), v, 6)
    groups = [v[i*7:(i + 1)*7, 0].mean() for i in range(6)]       # 43 = 6 * 7 + 1: the last is left out
    assert g.size == 7
    assert g.values.tolist() == pytest.approx(groups)
    assert g.value == pytest.approx(np.mean(groups)) == float(g)
    assert g.interval() == pytest.approx(stats.t.interval(.95, 5, np.mean(groups), stats.sem(groups)))
    assert g.interval(0.5) == pytest.approx(stats.t.interval(0.5, 5, np.mean(groups), stats.sem(groups)))
    assert '6 groups of 7' in repr(g)
    assert grouped(self_bleu, torch.ones(20, 8).long(), 5).interval() == (1, 1)
    for kw, what in (dict(groups=1), 'groups=1'), (dict(groups=44), '43 samples in 44'), (dict(level=1.), 'level=1.0'):
        with pytest.raises(ValueError, match=what): grouped(np.mean, v, **kw)
