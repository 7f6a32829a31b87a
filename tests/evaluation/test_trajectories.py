"""What did a sampler do? Overlap of runs and lifetimes of tokens."""
import itertools, math

import numpy as np
import torch
from hypothesis import given, strategies as hs

from navira.evaluation.trajectories import overlap, reselected

def sets(seed, T=5, n=3, L=4, p=.4):
    return torch.rand(T, n, L, generator=torch.Generator().manual_seed(seed)) < p

seeds = hs.integers(0, 10**6)

@given(seeds, hs.sampled_from([.05, .3, .7]))
def test_overlap_equals_that_of_python_s_sets(seed, p):
    a, b = sets(seed, p=p), sets(seed + 1, p=p)
    o, both, either = overlap(a, b), [], []
    for t, s in itertools.product(range(5), range(3)):
        A, B = (set(x[t, s].nonzero()[:, 0].tolist()) for x in (a, b))
        common = len(A & B)
        values = [common, common / len(A | B) if A | B else math.nan,
                  common / min(len(A), len(B)) if A and B else math.nan]
        np.testing.assert_allclose([o.intersection[t, s], o.jaccard[t, s], o.coefficient[t, s]],
                                   values)
        if A and B: both.append(values)
        if A | B: either.append(np.nan_to_num(values))
    for reading, values in dict(both=both, either=either).items():
        means = [r.value for r in o.mean(reading).values()]
        want = np.mean(values, 0) if values else [math.nan] * 3
        np.testing.assert_allclose(means, want)


@given(seeds, hs.sampled_from([None, 1, 2, 9]))
def test_reselected_equals_a_loop(seed, within):
    a, again = sets(seed, T=6), torch.zeros(3)
    for t, s, p in a.nonzero().tolist():
        again[s] += bool(a[max(0, t - (within or t)):t, s, p].any())
    r = reselected(a, within)
    assert r.part.tolist() == again.tolist() and r.whole.tolist() == a.sum((0, 2)).tolist()
