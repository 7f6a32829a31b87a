"""What did a sampler do? Overlap of runs and lifetimes of tokens."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as hs

import navira
from navira.evaluation.trajectories import lifetime, overlap, reselected
from toys import random_joint

def sets(seed, T=5, n=3, L=4, p=.4):
    return torch.rand(T, n, L, generator=torch.Generator().manual_seed(seed)) < p

seeds = hs.integers(0, 10**6)

@given(seeds, hs.sampled_from([.05, .3, .7]))
def test_overlap_equals_that_of_python_s_sets(seed, p):
    a, b = sets(seed, p=p), sets(seed + 1, p=p)
    o = overlap(a, b)
    both, either = [], []
    for t in range(5):
        for s in range(3):
            A, B = (set(x[t, s].nonzero()[:, 0].tolist()) for x in (a, b))
            common = len(A & B)
            coefficient = common / min(len(A), len(B)) if A and B else 0
            values = common, common / len(A | B) if A | B else 0, coefficient
            if A and B: both.append(values)
            if A | B: either.append(values)
            assert o.intersection[t, s] == common and o.both[t, s] == bool(A and B)
            assert o.jaccard[t, s].isnan() == (not A | B)
            assert o.coefficient[t, s].isnan() == (not (A and B))
    for reading, values in dict(both=both, either=either).items():
        means = [r.value for r in o.mean(reading).values()]
        want = np.mean(values, 0) if values else [math.nan] * 3
        np.testing.assert_allclose(means, want)

def test_trajectories_that_do_not_fit():
    a = sets(0)
    for b in a[:3], a[0]:
        with pytest.raises(ValueError, match=r'expected two of \[T, n, L\]'): overlap(a, b)
    with pytest.raises(KeyError, match="did you mean 'either'"): overlap(a, a).mean('eithr')
    with pytest.raises(ValueError, match='within=0'): reselected(a, 0)

@given(seeds, hs.sampled_from([None, 1, 2, 9]))
def test_reselected_equals_a_loop(seed, within):
    a, again = sets(seed, T=6), torch.zeros(3)
    for t, s, p in a.nonzero().tolist():
        again[s] += bool(a[max(0, t - (within or t)):t, s, p].any())
    r = reselected(a, within)
    assert r.part.tolist() == again.tolist() and r.whole.tolist() == a.sum((0, 2)).tolist()

@pytest.mark.parametrize('name, hyper', [
    ('navira-det', dict(eta=.4, on=0.)), ('navira', dict(tau=.5, eta=.4, on=0.)),
    ('remdm-cap', dict(eta=.3)), ('mask-predict', {}), ('backbone', {})])
def test_lifetimes_account_for_every_token_and_step(name, hyper):
    """Every token that was committed has a life, every remask ends one, and their steps add up to
    the tokens that stood."""
    joint = random_joint(6, 2)
    t = navira.sample(joint, name, budget=16, n=20, seed=3, trace=True, **hyper).trace
    life = lifetime(t.remasked, t.unmasked)
    assert len(life.steps) == t.unmasked.sum() and life.ended.sum() == t.remasked.sum()
    stood = (t.x[1:] != t.mask_id) & ~t.fixed
    assert life.steps.sum() == stood.sum() and (life.steps >= 1).all()
    assert life.censored.part.sum() == (t.x[-1] != t.mask_id).sum()
    s = life.survival()
    assert len(s) == t.T + 1 and s[0] == 1 and (s.diff() <= 0).all() and (s >= 0).all()
    assert life.ended.any() == (name != 'backbone')
