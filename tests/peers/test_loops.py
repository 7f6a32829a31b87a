"""Tolerator against its loop."""
import math

import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.sampler.draws import TokenSampler
from navira.sampling import sample
from helpers.peers import by_llada
from toys import Tiny

def redecoded(model, x, free, T0, M, start, end, patience, temperature, seed):
    "Tolerator's loop for one row: ids and passes"
    x, noise, draw = x.clone(), Noise(seed, torch.tensor([0])), TokenSampler(temperature)
    last, streak, n = {}, dict.fromkeys(free, 0), 0
    for j in range(M):
        r = end + (start - end) * .5 * (1 + math.cos(math.pi * j / (M - 1))) if M > 1 else end
        open_ = [k for k in free if streak[k] < patience]
        u = {name: noise.uniform(T0 + j, name, len(x))[0] for name in ('pick', 'token')}
        gone = sorted(open_, key=lambda k: u['pick'][k])[math.floor(len(open_) * (1 - r) + 1e-9):]
        if not gone: continue
        where = torch.isin(torch.arange(len(x)), torch.tensor(gone))
        y = torch.where(where, model.mask_id, x)
        tokens, _ = draw(model(y[None]).logits(where[None]), u['token'][where])
        for k, v in zip(sorted(gone), tokens.tolist()):
            streak[k] = streak[k] + 1 if last.get(k) == v else 1
            x[k] = last[k] = v
        n += 1
    return x, n

@given(hs.integers(0, 60), hs.integers(0, 4), hs.integers(1, 6), hs.integers(0, 8),
       hs.sampled_from([0., .3, .8, 1.]), hs.sampled_from([0., .4, 1.]), hs.integers(1, 4),
       hs.sampled_from([0., .3, 1.]))
def test_tolerator_is_its_loop(seed, P, T0, M, start, end, patience, heat):
    model, x = Tiny(9, 5, seed=seed), torch.full((1, 9), 5)
    x[0, torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:P]] = torch.arange(P)
    out = sample(model, 'tolerator', T0 + M, 1, seed, prompt=x, loop_steps=M, temperature=0.,
                 loop_temperature=heat, start=start, end=end, patience=patience)
    draft, free = by_llada(model, x[0], T0), (x[0] == 5).nonzero()[:, 0].tolist()
    want, n = redecoded(model, draft, free, T0, M, start, end, patience, heat, seed)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n + min(T0, len(free))
