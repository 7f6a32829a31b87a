"""Mask-Predict and RCR against their loops."""
import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.sampler.draws import TokenSampler
from navira.sampling import sample
from toys import Tiny

def loop(model, x, T, count, length, running, seed, temperature):
    "Ids and passes; `count(n, S, i)` of n are masked again after step i of S"
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
            if i < S - 1: x[sorted(pool, key=kept.get)[:count(length, S, i)]] = M
    return x, n

runs = dict(seed=hs.integers(0, 10**6), P=hs.integers(0, 3), temperature=hs.sampled_from([0., 1.]))

@given(hs.fixed_dictionaries(runs), hs.sampled_from([(8, None), (8, 4), (6, 2), (5, None), (9, 3)]),
       hs.integers(1, 4), hs.sampled_from(['last', 'highest', 'lowest']))
def test_rcr_is_its_loop(run, shape, per_block, running):
    (G, length), seed, P = shape, run['seed'], run['P']
    model, T = Tiny(P + G, 5, seed=seed % 97), per_block * (2 * G // length if length else 1)
    x = torch.full((1, P + G), 5)
    x[0, :P] = torch.arange(P)
    hyper = dict(running=running, block_length=length, temperature=run['temperature'], top_p=1.)
    out = sample(model, 'rcr', T, 1, seed, prompt=x, **hyper)
    again = lambda n, S, i: n * (S - i - 1) // S
    want, n = loop(model, x[0], T, again, length, running, seed, run['temperature'])
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

@given(hs.fixed_dictionaries(runs), hs.integers(1, 8), hs.integers(1, 14))
def test_mask_predict_is_its_loop(run, G, T):
    "It continues with one token where RCR stops"
    seed, P = run['seed'], run['P']
    model, x = Tiny(P + G, 5, seed=seed % 97), torch.full((1, P + G), 5)
    x[0, :P] = torch.arange(P)
    out = sample(model, 'mask-predict', T, 1, seed, prompt=x, temperature=run['temperature'])
    again = lambda n, S, i: max(1, n * (S - i - 1) // S)
    want, n = loop(model, x[0], T, again, None, 'last', seed, run['temperature'])
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n == T
