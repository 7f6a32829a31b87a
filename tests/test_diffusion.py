"""How a token is drawn: nucleus, temperature and ties, against plain loops."""
import math

import torch
from hypothesis import given, strategies as hs

from navira.diffusion import categorical, drawer, nucleus


def test_draws_are_float64():
    "A tail of 1e-9 is reached by a uniform, which float32 would round away"
    assert categorical(torch.tensor([[1., 1e-9]]),
                       torch.tensor([1 - 5e-10], dtype=torch.float64)).item() == 1
    assert categorical(torch.tensor([[1., 1e-9]]),
                       torch.tensor([1 - 2e-9], dtype=torch.float64)).item() == 0
    lg = torch.tensor([[0., -20., -math.inf]])
    tail = math.exp(-20) / (1 + math.exp(-20))
    for f, want in ((0.9, 1), (1.1, 0)):
        assert nucleus(1.0)(lg, torch.tensor([1 - f * tail], dtype=torch.float64))[0].item() == want

def test_categorical_at_the_edges():
    lo, hi = 2.**-53, 1 - 2.**-53
    for w in (
        [0.0, 0.0, 1.0, 2.0, 0.0],
        [0.0, 3.0, 0.0, 0.0, 0.0],
        [1e-300, 0, 1e-300, 0, 0],
        [0.0, 1e300, 1e300, 0.0, 0.0],
        [1.0, 1.0, 1.0, 1.0, 1.0],
    ):
        p = torch.tensor([w], dtype=torch.float64)
        ok = p[0].nonzero()[:, 0]
        for u, want in ((0.0, ok[0]), (lo, ok[0]), (hi, ok[-1]), (1.0, ok[-1])):
            assert categorical(p, torch.tensor([u], dtype=torch.float64)).item() == want

def by_sorting(lg, u, temperature, p, top_k, crossing):
    """Stable sort with indices, cumulate, cut, draw: as the equations read, one row after the
    other. Nothing is sorted where nothing is cut."""
    out = []
    for l, v in zip(lg.double(), u):
        l = (l - l.max()) / (temperature or 1.)
        order = l.argsort(descending=True, stable=True)
        if p == 1 and not top_k and temperature > 0: order = torch.arange(len(l))
        q = l[order].softmax(0)
        before = q.cumsum(0) - (q if crossing else 0)
        keep = (before <= p) if p < 1 else torch.ones_like(q, dtype=torch.bool)
        keep[0] = True
        if top_k: keep[top_k:] = False
        q = q * keep / (q * keep).sum()
        i = (
            int(v * min(int((l == l.max()).sum()), int(keep.sum())))
            if temperature == 0
            else min(int((q.cumsum(0) <= v).sum()), int(keep.sum()) - 1)
        )
        out.append((order[i].item(), q[i].item()))
    return out

@given(
    hs.lists(hs.lists(hs.integers(-6, 6), min_size=9, max_size=9), min_size=1, max_size=4),
    hs.integers(0, 2**20),
    hs.sampled_from([0, 0.5, 1.0, 2.0]),
    hs.sampled_from([0.35, 0.6, 0.9, 0.99, 1.0]),
    hs.sampled_from([None, 1, 3, 20]),
    hs.booleans(),
    hs.sampled_from([torch.float32, torch.float64]),
)
def test_a_draw_is_the_one_by_sorting_also_with_ties(rows, seed, temperature, p, top_k, crossing,
                                                     dtype):
    lg = torch.tensor(rows, dtype=dtype) * .7
    lg[:, -1] = -torch.inf
    u = torch.rand(len(lg), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    d = drawer(temperature, p, top_k, crossing)
    tokens, prob = d(lg, u)
    want = by_sorting(lg, u, temperature, p, top_k, crossing)
    assert tokens.tolist() == [t for t, _ in want]
    torch.testing.assert_close(prob, torch.tensor([q for _, q in want], dtype=torch.float64),
                               atol=1e-12, rtol=0)
    q = d.distribution(lg)
    torch.testing.assert_close(q.gather(1, tokens[:, None])[:, 0], prob, atol=1e-12, rtol=0)
    torch.testing.assert_close(q.sum(1), torch.ones(len(lg), dtype=torch.float64), atol=1e-12,
                               rtol=0)
