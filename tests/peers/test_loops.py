"""Tolerator and GIDD's self-correction against their loops."""
import math

import torch
from hypothesis import given, settings, strategies as hs

from navira.base.noise import Noise
from navira.core import step
from navira.sampler.draws import TokenSampler
from navira.sampler.registry import policy
from navira.sampler.ties import ranks
from navira.sampling import sample
from helpers.peers import state
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
    draft = sample(model, 'llada-low-confidence', T0, prompt=x).tokens[0]
    free = (x[0] == 5).nonzero()[:, 0].tolist()
    want, n = redecoded(model, draft, free, T0, M, start, end, patience, heat, seed)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n + min(T0, len(free))

def written_out(model, st, steps, k, tau, patience):
    "The authors' loop for one text, with our noise: texts after each step, passes"
    free = ~st.fixed[0]
    z, best, waited, ran, active = st.x[0].clone(), 0., 0, 0, bool(free.any())
    after = []
    for s in range(steps):
        if active:
            ran += 1
            logits = model(z[None]).logits(free[None])
            token = st.noise.uniform(st.i + s, 'token', len(z))[0, free]
            ties = st.noise.uniform(st.i + s, 'ties', len(z))[:, free]
            new, q = TokenSampler(tau)(logits, token)
            score = q * (new != z[free])
            place = ranks(score[None], torch.ones_like(score[None]).bool(), ties)[0]
            y = z[free].where(place >= k, new)
            share = (y == logits.argmax(-1)).double().mean().item()
            waited = 0 if share > best else waited + 1
            best = max(best, share)
            active = waited <= patience and not torch.equal(y, z[free])
            if active: z[free] = y
        after.append(z.clone())
    return after, ran

@settings(max_examples=40)
@given(hs.integers(0, 10**6), hs.integers(0, 3), hs.sampled_from([.1, .5, 1.]), hs.integers(0, 4),
       hs.sampled_from([0., .4, 1.]))
def test_gidd_correct_is_its_loop(seed, k, tau, patience, share):
    "At every step, of texts with a prompt and without"
    model, g = Tiny(7, 5), torch.Generator().manual_seed(seed)
    x, fixed = torch.randint(0, 5, (1, 7), generator=g), torch.rand(1, 7, generator=g) < share
    st = state(x, model.mask_id, 1, 99, seed=seed, fixed=fixed)
    hyper = dict(n_replace=k, temperature=tau, patience=patience)
    rule = policy('gidd-correct', loop_steps=98, **hyper)
    texts, passes = written_out(model, st, 8, k, tau, patience)
    for text in texts:
        st = step(rule, st, model)
        assert torch.equal(st.x[0], text)
    assert st.n_forward.item() == passes
