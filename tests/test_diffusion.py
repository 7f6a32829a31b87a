"""How a token is drawn: nucleus, temperature and ties, against plain loops."""

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.sampler.draws import TokenSampler
from toys import race

def by_sorting(lg, u, temperature, p, top_k, crossing):
    """Stable sort with indices, cumulate, cut, race: as the equations read, one row after the
    other."""
    out = []
    for l, v in zip(lg.double(), u.tolist()):
        l = (l - l.max()) / (temperature or 1.)
        order = l.argsort(descending=True, stable=True)
        q = l[order].softmax(0)
        keep = (q.cumsum(0) - crossing * q <= p) | (p == 1)
        keep[0] = True
        if top_k: keep[top_k:] = False
        q = q * keep / (q * keep).sum()
        if temperature: i = max(range(len(l)), key=lambda i: q[i] / race(v, order[i].item()))
        else: i = int(v * min((l == 0).sum(), keep.sum()))
        out.append((order[i].item(), q[i].item()))
    return zip(*out)

@given(hs.lists(hs.lists(hs.integers(-6, 6), min_size=9, max_size=9), min_size=1, max_size=4),
       hs.integers(0, 2**20), hs.sampled_from([0, 0.5, 1.0, 2.0]),
       hs.sampled_from([0.35, 0.6, 0.9, 0.99, 1.0]), hs.sampled_from([None, 1, 3, 20]),
       hs.booleans(), hs.sampled_from([torch.float32, torch.float64]))
def test_a_draw_is_the_one_by_sorting_also_with_ties(rows, seed, temperature, p, top_k, crossing,
                                                     dtype):
    lg = torch.tensor(rows, dtype=dtype) * .7
    lg[:, -1] = -torch.inf
    u = torch.rand(len(lg), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tokens, prob = TokenSampler(temperature, p, top_k, crossing)(lg, u)
    want, q = by_sorting(lg, u, temperature, p, top_k, crossing)
    assert tokens.tolist() == [*want] and prob.tolist() == pytest.approx(
        [*q], abs=1e-6 if dtype == torch.float32 and temperature == 0 else 1e-12)
