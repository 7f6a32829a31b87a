"""Dream, RCR and PC-Sampler against loops, for one row; tests/helpers/planted.py has LLaDA's."""
import itertools
import math

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.peers.orders import pc_sampler
from navira.sampler.draws import TokenSampler
from navira.sampling import sample
from helpers.peers import at_masks, best, prefixes
from toys import Tiny

# ---- Dream, at temperature 0

def dream(model, x, T, rate, eps=1e-3):
    x, t = x.clone(), torch.linspace(1, eps, T + 1).tolist()
    for i in range(T):
        q = at_masks(model, x)
        k = int(len(q) * (1 - t[i + 1] / t[i])) if i < T - 1 else len(q)
        for j in best({j: rate(v) for j, v in q.items()}, k): x[j] = q[j].argmax()
    return x

@pytest.mark.parametrize('seed', range(3))
def test_dream_is_the_authors_loop(seed):
    model = Tiny(12, 5, seed=seed)
    rates = {
        'dream-maskgit-plus': lambda q: q.max(),
        'dream-topk-margin': lambda q: q.topk(2).values.diff().neg(),
        'dream-entropy': lambda q: (q * (q + 1e-10).log()).sum()}
    for (name, rate), P, T in itertools.product(rates.items(), (0, 3), (1, 3, 8, 16)):
        x = prefixes(12, 5, P)
        got = sample(model, name, T, prompt=x, temperature=0., top_p=1.).tokens[0]
        assert torch.equal(got, dream(model, x[0], T, rate)), (name, P, T)

# ---- RCR

def loop(model, x, T, length, running, seed, temperature):
    "Ids and passes"
    x, M = x.clone(), model.mask_id
    free = [j for j in range(len(x)) if x[j] == M]
    length = length or len(free)
    n_blocks = len(free) // length
    S = T // n_blocks
    fold = dict(last=lambda old, new: new, highest=max, lowest=min)[running]
    noise, draw, kept, n = Noise(seed, torch.tensor([0])), TokenSampler(temperature), {}, 0
    for b in range(n_blocks):
        pool = free[:(b + 1) * length]
        for i in range(S):
            masks = torch.tensor([j in pool and x[j] == M for j in range(len(x))])
            if masks.any():
                u = noise.uniform(b * S + i, 'token', len(x))[0]
                tokens, q = draw(model(x[None]).logits(masks[None]), u[masks])
                n += 1
                for j, v, c in zip(masks.nonzero()[:, 0].tolist(), tokens, q.tolist()):
                    x[j], kept[j] = v, fold(kept[j], c) if j in kept else c
            x[sorted(pool, key=kept.get)[:length * (S - i - 1) // S]] = M
    return x, n

@given(hs.integers(0, 10**6), hs.integers(0, 3), hs.sampled_from([0., 1.]), hs.integers(1, 4),
       hs.sampled_from(['last', 'highest', 'lowest']),
       hs.sampled_from([(8, None), (8, 4), (6, 2), (5, None), (9, 3)]))
def test_rcr_is_its_loop(seed, P, temperature, per_block, running, shape):
    G, length = shape
    model, x = Tiny(P + G, 5, seed=seed % 97), prefixes(P + G, 5, P)
    T = per_block * (2 * G // length if length else 1)
    out = sample(model, 'rcr', T, 1, seed, prompt=x, running=running, block_length=length,
                 temperature=temperature, top_p=1.)
    want, n = loop(model, x[0], T, length, running, seed, temperature)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

# ---- PC-Sampler, at temperature 0

def weighed(model, x, T, lam, alpha):
    x, f = x.clone(), torch.stack([*at_masks(model, x).values()]).mean(0)
    free = (x == model.mask_id).nonzero()[:, 0].tolist()
    for i in range(T):
        q = at_masks(model, x)
        def rate(j):
            v = q[j].argmax()
            return math.exp(-lam * free.index(j)) * min(alpha, float(-q[j][v] * f[v].log()))
        k = len(free) // T + (i < len(free) % T)
        for j in best({j: rate(j) for j in q}, k): x[j] = q[j].argmax()
    return x

@given(hs.integers(0, 60), hs.sampled_from([0, 3, 6]), hs.integers(1, 9),
       hs.sampled_from([(0., 10.), (.25, 10.), (.25, .5), (1., 10.)]))
def test_pc_sampler_is_its_loop(seed, P, T, how):
    model, x = Tiny(10, 5, seed=seed), prefixes(10, 5, P, 8 - P)
    out = sample(model, pc_sampler(*how), T, prompt=x)
    for row, got in zip(x, out.tokens): assert torch.equal(got, weighed(model, row, T, *how))
