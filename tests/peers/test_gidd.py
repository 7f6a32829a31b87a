"""GIDD's self-correction: parity with its steps written out, what it leaves alone, and what it is told."""
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as hs

from navira.base.noise import Noise
from navira.core import Pass, ranks, State, step
from navira.diffusion import drawer
from navira.joint import random_joint
from navira.models.dit import MaskedLM, tiny_model
from navira.peers.gidd import At, at_time
from navira.registry import policy
from navira.sampling import sample
from helpers.revisers import Raw

def finished(x, M, fixed, seed, i=1, n=99):
    st = State.start(torch.full_like(x, M), M, n, Noise(seed, torch.arange(len(x))))
    return replace(st, x=x, i=i, fixed=fixed)

def written_out(model, st, steps, k, tau, patience):
    "The authors' loop, a text at a time, with the draws of our noise: (texts after each step, passes)."
    texts, passes = [[] for _ in st.x], []
    for b in range(len(st.x)):
        free = ~st.fixed[b]
        z, best, waited, ran, going = st.x[b].clone(), 0., 0, 0, bool(free.any())
        for s in range(steps):
            if going:
                ran += 1
                where = free[None]
                logits = model(z[None]).logits(where)
                now = replace(st[torch.arange(len(st.x)) == b], i=st.i + s)
                new, q = drawer(temperature=tau)(logits, now.uniform('token')[where])
                ties = now.uniform('ties')[where]
                at = free.nonzero()[:, 0]
                score = q * (new != z[at])
                place = ranks(score[None], torch.ones(1, len(at), dtype=torch.bool), ties[None])[0]     # for near-ties
                y = z.clone()
                for j in range(len(at)):
                    if place[j] < k: y[at[j]] = new[j]
                share = (y[at] == logits.argmax(-1)).double().mean().item()
                if share > best: best, waited = share, 0
                else: waited += 1
                if waited > patience: going = False
                elif (y == z).all(): going = False
                else: z = y
            texts[b].append(z.clone())
        passes.append(ran)
    return torch.stack([torch.stack(t) for t in texts], 1), passes

@settings(max_examples=40, deadline=None)
@given(hs.integers(0, 10**6), hs.integers(0, 3), hs.sampled_from([.1, .5, 1.]), hs.integers(0, 4))
def test_parity_with_the_steps_written_out(seed, k, tau, patience):
    "Raw logits and exact conditionals; texts with a prompt and without; the same texts and passes at every step."
    for model, L in ((Raw(7, 5), 7), (random_joint(4, 3, seed % 7), 4)):
        g = torch.Generator().manual_seed(seed)
        x = torch.randint(0, model.mask_id, (3, L), generator=g)
        fixed = torch.rand(3, L, generator=g) < torch.tensor([[0.], [.4], [1.]])
        st = finished(x, model.mask_id, fixed, seed)
        rule = policy('gidd-correct', loop_steps=98, n_replace=k, temperature=tau, patience=patience)
        texts, passes = written_out(model, st, 8, k, tau, patience)
        for s in range(8):
            st = step(rule, st, model)
            assert torch.equal(st.x, texts[s])
        assert st.n_forward.tolist() == passes

def test_a_row_does_not_depend_on_its_batch():
    model = Raw(9, 6)
    whole = sample(model, 'gidd-correct', 14, 12, seed=3, loop_steps=8, temperature=1.)
    parts = sample(model, 'gidd-correct', 14, 12, seed=3, batch_size=5, loop_steps=8, temperature=1.)
    assert torch.equal(whole.tokens, parts.tokens) and torch.equal(whole.n_forward, parts.n_forward)
    assert whole.n_forward.unique().numel() > 1                            # some were left alone

@given(hs.integers(1, 30), hs.one_of(hs.none(), hs.integers(0, 12)))
@settings(max_examples=15, deadline=None)
def test_it_keeps_to_the_budget_and_leaves_no_mask(budget, loop_steps):
    model = random_joint(5, 3, 1)
    if (loop_steps or 0) >= budget:
        with pytest.raises(ValueError, match='leave no step'):
            sample(model, 'gidd-correct', budget, 4, loop_steps=loop_steps)
        return
    out = sample(model, 'gidd-correct', budget, 4, loop_steps=loop_steps)
    assert out.n_forward.max() <= budget and (out.tokens != model.mask_id).all()

def test_no_loop_is_mdlm():
    model = random_joint(5, 3, 1)
    for budget in (1, 4, 9):
        a, b = (sample(model, name, budget, 50, trace=True, **kw)
                for name, kw in (('gidd-correct', dict(loop_steps=0)), ('mdlm', {})))
        assert torch.equal(a.trace.x, b.trace.x) and torch.equal(a.n_forward, b.n_forward)

@settings(max_examples=20, deadline=None)
@given(hs.integers(0, 10**6), hs.integers(2, 5), hs.integers(2, 3))
def test_at_temperature_0_the_joint_is_climbed_to_a_mode(seed, L, V):
    model = random_joint(L, V, seed)
    out = sample(model, 'gidd-correct', L + 60, 20, seed=seed, loop_steps=60, temperature=0., top_p=1., trace=True)
    p = model.joint[tuple(out.trace.x[L:].long().unbind(-1))]
    assert (p.diff(dim=0) >= 0).all()
    for x in out.tokens.tolist():
        for j in range(L):
            line = model.joint[tuple(slice(None) if i == j else v for i, v in enumerate(x))]
            assert model.joint[tuple(x)] >= line.max() * (1 - 1e-6)

def test_the_time_it_is_told():
    "A network that looks at the time gets t0 in the loop, and while it writes what its masks say."
    model, told = MaskedLM(replace(tiny_model().config, p_uniform=.2)).eval(), []
    with torch.no_grad():
        for p in model.parameters(): p.copy_(.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    plain = model.forward
    model.forward = lambda x, time=None: told.append((x, time)) or plain(x, time)
    sample(model, 'gidd-correct', 9, 3, length=8, loop_steps=5, t0=.05, temperature=1.)
    times = [(bool((x == model.mask_id).any()), t) for x, t in told]
    assert all((t is None) == masked for masked, t in times) and {masked for masked, _ in times} == {True, False}
    assert all((t == .05).all() and t.shape == x.shape[:1] for x, t in told if t is not None)
    st = finished(torch.zeros(2, 8, dtype=torch.long), model.mask_id, torch.zeros(2, 8, dtype=torch.bool), 0)
    every = torch.ones_like(st.fixed)
    assert torch.equal(Pass(at_time(model, .3), st).logits(every), plain(st.x, torch.full((2,), .3)).logits(every))
    bare = tiny_model()
    assert at_time(bare, .3) is bare and isinstance(at_time(model, .3), At) and At(model, .3).length == model.length

@pytest.mark.parametrize('given_, match', [
    (dict(n_replace=-1), 'n_replace=-1'), (dict(t0=0.), r't0=0\.0.*above 0'), (dict(t0=1), 't0=1.*below 1'),
    (dict(patience=-2), 'patience=-2'), (dict(loop_steps=-1), 'loop_steps=-1'),
    (dict(temperature=-1.), 'temperature=-1')])
def test_bad_input(given_, match):
    with pytest.raises(ValueError, match=match): policy('gidd-correct', **given_)
