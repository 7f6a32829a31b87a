"""PRISM and LLaDA with a loop at the end: what it costs, and Tolerator's loop."""
import math

import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.sampler.draws import TokenSampler
from navira.sampling import sample
from helpers.peers import at_masks, best
from toys import Tiny


def filled_by_llada(model, x, T): # at temperature 0, one row
    x, n = x.clone(), int((x == model.mask_id).sum())
    for i in range(T):
        q = at_masks(model, x)
        top = {j: v.max() for j, v in q.items()}
        for j in best(top, n // T + (i < n % T)): x[j] = q[j].argmax()
    return x

def redecoded(model, x, free, T0, M, start, end, patience, temperature, seed):
    "Tolerator's loop for one row: ids, passes, positions locked at the end"
    x, noise, draw = x.clone(), Noise(seed, torch.tensor([0])), TokenSampler(temperature)
    last, streak, n = {}, dict.fromkeys(free, 0), 0
    for j in range(M):
        r = end + (start - end) * .5 * (1 + math.cos(math.pi * j / (M - 1))) if M > 1 else end
        open_ = [k for k in free if streak[k] < patience]
        u = {name: noise.uniform(T0 + j, name, len(x))[0] for name in ('pick', 'token')}
        gone = sorted(open_, key=lambda k: u['pick'][k])[math.floor(len(open_) * (1 - r) + 1e-9):]
        if not gone: continue
        y, where = x.clone(), torch.zeros(1, len(x), dtype=torch.bool)
        y[gone], where[0, gone], n = model.mask_id, True, n + 1
        tokens, _ = draw(model(y[None]).logits(where), u['token'][where[0]])
        for k, v in zip(where[0].nonzero()[:, 0].tolist(), tokens.tolist()):
            streak[k] = streak[k] + 1 if last.get(k) == v else 1
            x[k] = last[k] = v
    return x, n, [k for k in free if streak[k] >= patience]

how = hs.fixed_dictionaries(dict(
    start=hs.sampled_from([0., .3, .8, 1.]), end=hs.sampled_from([0., .4, 1.]),
    patience=hs.integers(1, 4)))

@given(hs.integers(0, 60), hs.integers(0, 4), hs.integers(1, 6), hs.integers(0, 8), how,
       hs.sampled_from([0., .3, 1.]))
def test_tolerator_is_its_loop(seed, P, T0, M, hyper, heat):
    model, x = Tiny(9, 5, seed=seed), torch.full((1, 9), 5)
    x[0, torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:P]] = torch.arange(P)
    heats = dict(temperature=0., loop_temperature=heat)
    out = sample(model, 'tolerator', T0 + M, 1, seed, prompt=x, loop_steps=M, **heats, **hyper)
    draft, free = filled_by_llada(model, x[0], T0), (x[0] == 5).nonzero()[:, 0].tolist()
    want, n, _ = redecoded(model, draft, free, T0, M, **hyper, temperature=heat, seed=seed)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n + min(T0, len(free))
