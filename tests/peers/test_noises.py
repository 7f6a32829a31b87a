"""GIDD's self-correction against its steps written out."""

import torch
from hypothesis import given, settings, strategies as hs

from navira.sampler.ties import ranks
from navira.core import step
from navira.sampler.draws import TokenSampler
from navira.sampler.registry import policy
from helpers.peers import Raw, state

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
def test_it_is_the_authors_loop(seed, k, tau, patience, share):
    "At every step, of texts with a prompt and without"
    model, g = Raw(7, 5), torch.Generator().manual_seed(seed)
    x, fixed = torch.randint(0, 5, (1, 7), generator=g), torch.rand(1, 7, generator=g) < share
    st = state(x, model.mask_id, 1, 99, seed=seed, fixed=fixed)
    hyper = dict(n_replace=k, temperature=tau, patience=patience)
    rule = policy('gidd-correct', loop_steps=98, **hyper)
    texts, passes = written_out(model, st, 8, k, tau, patience)
    for text in texts:
        st = step(rule, st, model)
        assert torch.equal(st.x[0], text)
    assert st.n_forward.item() == passes
