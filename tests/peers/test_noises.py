"""GIDD's self-correction: parity with its steps written out, and the time that it sets."""
from dataclasses import replace

import torch
from hypothesis import given, settings, strategies as hs

from navira.sampler.ties import ranks
from navira.core import step
from navira.sampler.draws import TokenSampler
from navira.sampler.joint import random_joint
from navira.sampler.registry import policy
from helpers.peers import Raw, state

def written_out(model, st, steps, k, tau, patience):
    "The authors' loop, a text at a time, with our noise: (texts after each step, passes)"
    texts, passes = [], []
    for b in range(len(st.x)):
        free = ~st.fixed[b]
        z, best, waited, ran, active = st.x[b].clone(), 0., 0, 0, bool(free.any())
        at, where, after = free.nonzero()[:, 0], free[None], []
        for s in range(steps):
            if active:
                ran += 1
                logits = model(z[None]).logits(where)
                now = replace(st[torch.arange(len(st.x)) == b], i=st.i + s)
                new, q = TokenSampler(temperature=tau)(logits, now.uniform('token')[where])
                score, ties = q * (new != z[at]), now.uniform('ties')[where]
                every = torch.ones(1, len(at), dtype=torch.bool)
                place = ranks(score[None], every, ties[None])[0]       # near-ties
                y = z.clone()
                y[at[place < k]] = new[place < k]
                share = (y[at] == logits.argmax(-1)).double().mean().item()
                waited = 0 if share > best else waited + 1
                best = max(best, share)
                active = waited <= patience and not (y == z).all()
                if active: z = y
            after.append(z.clone())
        texts.append(torch.stack(after))
        passes.append(ran)
    return torch.stack(texts, 1), passes

@settings(max_examples=40)
@given(hs.integers(0, 10**6), hs.integers(0, 3), hs.sampled_from([.1, .5, 1.]), hs.integers(0, 4))
def test_it_is_the_authors_loop(seed, k, tau, patience):
    "Raw logits and exact conditionals; texts with a prompt and without; at every step"
    for model, L in ((Raw(7, 5), 7), (random_joint(4, 3, seed % 7), 4)):
        g = torch.Generator().manual_seed(seed)
        x = torch.randint(0, model.mask_id, (3, L), generator=g)
        fixed = torch.rand(3, L, generator=g) < torch.tensor([[0.], [.4], [1.]])
        st = state(x, model.mask_id, 1, 99, seed=seed, fixed=fixed)
        hyper = dict(n_replace=k, temperature=tau, patience=patience)
        rule = policy('gidd-correct', loop_steps=98, **hyper)
        texts, passes = written_out(model, st, 8, k, tau, patience)
        for s in range(8):
            st = step(rule, st, model)
            assert torch.equal(st.x, texts[s])
        assert st.n_forward.tolist() == passes
