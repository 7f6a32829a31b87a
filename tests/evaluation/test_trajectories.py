"""What did a sampler do? Overlap of runs, lifetimes of tokens, and rules compared in the same state."""
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as hs

import navira
from navira.evaluation.trajectories import Lifetimes, lifetime, overlap, reselected
from toys import random_joint

kinds = {'navira-det': dict(eta=.4, on=0.), 'navira': dict(tau=.5, eta=.4, on=0.), 'remdm-cap': dict(eta=.3),
         'mask-predict': {}, 'backbone': {}}

# --- trajectories ---------------------------------------------------------------------------------
def bools(seed, T=5, n=3, L=4, p=.4): return torch.rand(T, n, L, generator=torch.Generator().manual_seed(seed)) < p

seeds = hs.integers(0, 10**6)

@given(seeds, hs.sampled_from([.05, .3, .7]))
def test_overlap_equals_sets(seed, p):
    a, b = bools(seed, p=p), bools(seed + 1, p=p)
    o = overlap(a, b); i, j, c = (v.numpy() for v in (o.intersection, o.jaccard, o.coefficient))
    both = either = 0; sums = Counter()
    for t in range(5):
        for s in range(3):
            A, B = (set(np.flatnonzero(x[t, s])) for x in (a.numpy(), b.numpy()))
            assert i[t, s] == len(A & B)
            assert j[t, s] == len(A & B) / len(A | B) if A | B else math.isnan(j[t, s])
            assert c[t, s] == len(A & B) / min(len(A), len(B)) if A and B else math.isnan(c[t, s])
            both, either = both + bool(A and B), either + bool(A | B)
            sums['i'] += len(A & B); sums['c'] += len(A & B) / min(len(A), len(B)) if A and B else 0
            sums['j'] += len(A & B) / len(A | B) if A | B else 0
    for reading, n in ('both', both), ('either', either):
        m = o.mean(reading)
        if not n: assert math.isnan(m['jaccard'].value); continue
        for k, name in ('i', 'intersection'), ('j', 'jaccard'), ('c', 'coefficient'):
            assert m[name].value == pytest.approx(sums[k] / n)

@given(seeds)
def test_overlap_invariants(seed):
    a, b = bools(seed), bools(seed + 1)
    o, back, self = overlap(a, b), overlap(b, a), overlap(a, a)
    for k in 'intersection', 'jaccard', 'coefficient': np.testing.assert_array_equal(getattr(o, k), getattr(back, k))
    ok = o.both
    assert (o.jaccard[ok] <= o.coefficient[ok]).all() and (o.coefficient[ok] <= 1).all() and (~o.both | o.either).all()
    assert (self.jaccard[self.either] == 1).all() and (self.both == self.either).all()
    assert (overlap(a, ~a).intersection == 0).all()

def test_bad_trajectories():
    a = bools(0)
    for b in a[:3], a[0]:
        with pytest.raises(ValueError, match=r'expected two of \[T, n, L\]'): overlap(a, b)
    with pytest.raises(KeyError, match="did you mean 'either'"): overlap(a, a).mean('eithr')
    with pytest.raises(ValueError, match='within=0'): reselected(a, 0)

@given(seeds, hs.sampled_from([None, 1, 2, 9]))
def test_reselected_equals_a_loop(seed, within):
    a, r = bools(seed, T=6), None
    r, again = reselected(a, within), torch.zeros(3)
    for t, s, p in a.nonzero().tolist(): again[s] += bool(a[max(0, t - (within or t)):t, s, p].any())
    assert r.part.tolist() == again.tolist() and r.whole.tolist() == a.sum((0, 2)).tolist()

@pytest.mark.parametrize('name', kinds)
def test_lifetimes_account_for_every_token_and_step(name):
    "Every token that was committed has a life, every remask ends one, and their steps add up to the tokens that stood."
    joint = random_joint(6, 2)
    t = navira.sample(joint, name, budget=16, n=20, seed=3, trace=True, **kinds[name]).trace
    life = lifetime(t.remasked, t.unmasked)
    assert len(life.steps) == t.unmasked.sum() and life.ended.sum() == t.remasked.sum() and (life.steps >= 1).all()
    stood = ((t.x[1:] != t.mask_id) & ~t.fixed).sum()
    assert life.steps.sum() == stood
    assert life.censored.part.sum() == (t.x[-1] != t.mask_id).sum()
    s = life.survival()
    assert s[0] == 1 and (s.diff() <= 0).all() and (s >= 0).all() and len(s) == t.T + 1
    if name == 'backbone': assert (s == 1).all() and math.isnan(life.mean_ended.value) and life.censored.value == 1
    else: assert life.ended.any()

def test_survival_of_lives_that_are_all_watched_is_the_share_that_is_left():
    life = Lifetimes(torch.tensor([1, 2, 2, 5]), torch.ones(4).bool(), torch.tensor([0, 0, 1, 1]), 2, 6)
    np.testing.assert_allclose(life.survival(), [1, 3/4, 1/4, 1/4, 1/4, 0, 0])
    assert life.mean_ended.value == 2.5 and life.mean_ended.part.tolist() == [3, 7]
