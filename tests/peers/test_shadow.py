"""WINO, COVER and ASRD against their loop written out, for one row at temperature 0; shadows of a
network against one long sequence."""
import pytest
import torch
from hypothesis import given, settings, strategies as hs

from navira.models.layers import rotary
from navira.peers.shadow import asrd, cover, wino
from navira.sampling import sample
from helpers.peers import best, everywhere, prefixes
from toys import small_lm, Tiny

L = 12

def lm(seed=0, sharp=4., **kw):
    "Random weights, and sure of its predictions"
    model = small_lm(seed, **kw).double()
    model.backbone.output_layer.linear.weight.mul_(sharp)
    return model

def long_pass(model, x, block, together):
    "Logits of tokens and of a shadow for each position of `block`, as one long sequence"
    net, n, S = model.backbone, len(x), len(block)
    ids = torch.cat([x, torch.full((S,), model.mask_id)])
    where = torch.cat([torch.arange(n), torch.tensor(block).long()])
    sees = torch.ones(n + S, n + S, dtype=torch.bool)
    sees[:, n:] = False
    sees[n:, n:] = torch.ones(S, S) if together else torch.eye(S)
    for k, j in enumerate(block): sees[n + k, j] = False
    h, rope = net.vocab_embed(ids[None]), None
    if net.place is None: rope = [a[where] for a in rotary(n, h.shape[-1] // net.config.n_heads, h)]
    else: h = h + net.place()[where]
    c = torch.nn.functional.silu(net.sigma_map(torch.zeros(1)))
    for b in net.blocks: h = b(h, c, rope, seen=sees)
    out = net.output_layer(h, c)[0]
    out[:, model.mask_id] = -torch.inf
    return out[:n], out[n:]

# ---- the loop of all three

def drawn(q): return {j: (int(v.argmax()), v.max().item()) for j, v in enumerate(q)}

def revoking(x, mask, threshold, length, look, most=None):
    """Accept above the threshold, then revoke fewer tokens than the step before accepted.
    `look(x, block, committed, written, streak, last)` gives {position: (token, probability)}, what
    it rates, and a doubt for each of these that is wrong. WINO accepts `most` tokens at most."""
    P, passes, last, written = int((x != mask).sum()), 0, 0, {}
    streak = dict.fromkeys(range(L), 0)
    for block in [list(range(a, L))[:length] for a in range(P, L, length)]:
        while (x[block] == mask).any():
            masks = [j for j in block if x[j] == mask]
            committed = [j for j in block if j not in masks]
            d, rated, wrong = look(x, block, committed, written, streak, last)
            cap = min(max(7 * len(masks) // 10, 5), most) if most else L
            order = best({j: d[j][1] for j in masks}, cap)
            sure = [j for j in order if d[j][1] >= threshold] or order[:1]
            for j in sure: x[j], written[j] = d[j]
            if len(sure) > 1: x[best(wrong, last - 1)] = mask
            for j in rated: streak[j] = 0 if j in wrong else streak[j] + 1
            for j in sure: streak[j] = 0
            last, passes = len(sure), passes + 1
    return x.tolist(), passes

def agree(model, rule, x, *settings):
    out = sample(model, rule, 1, prompt=x)
    want, passes = revoking(x[0].clone(), model.mask_id, *settings)
    assert out.tokens[0].tolist() == want and out.n_forward[0] == passes <= L

thresholds, lengths = hs.sampled_from([.3, .5, .7]), hs.sampled_from([3, 5, 12])
seeds, prompts = hs.integers(0, 30), hs.integers(1, 5)

@settings(max_examples=25)
@given(seeds, prompts, thresholds, lengths, hs.sampled_from([.2, .6, .9, 1.]), hs.booleans(),
       hs.sampled_from([2, 3, 20]))
def test_wino_is_its_loop(seed, P, accept, length, back, together, most):
    model = lm(seed)
    def look(x, block, committed, *_):
        plain, shades = (v.softmax(-1) for v in long_pass(model, x, block, together))
        low = {j: shades[k, x[j]].item() for k, j in enumerate(block) if j in committed}
        return drawn(plain), committed, {j: -q for j, q in low.items() if q < back}
    rule = wino(accept, back, length, most, 'together' if together else 'alone')
    agree(model, rule, prefixes(L, 10, P), accept, length, look, most)

sharp = hs.sampled_from([.25, .5, 1.])

@given(seeds, prompts, thresholds, lengths, hs.sampled_from([0, 1, 3, 8]), sharp)
def test_cover_is_its_loop(seed, P, accept, length, most, sharp):
    model = Tiny(L, 5, seed=seed, sharp=sharp)
    def look(x, block, committed, written, streak, last):
        risk = {j: (1 - written[j]) / (1 + streak[j]) for j in committed}
        rated, wrong = best(risk, min(last, most)), {}
        for j in rated:
            token, q = drawn(everywhere(model, x.index_fill(0, torch.tensor([j]), 5)))[j]
            if token != x[j]: wrong[j] = q
        return drawn(everywhere(model, x)), rated, wrong
    agree(model, cover(accept, most, length), prefixes(L, 5, P), accept, length, look)

@given(seeds, prompts, thresholds, lengths, hs.integers(1, 3), hs.sampled_from([0., .5, 2.]), sharp)
def test_asrd_is_its_loop(seed, P, accept, length, patience, push, sharp):
    model = Tiny(L, 5, seed=seed, sharp=sharp, width=4)
    def look(x, block, committed, written, streak, last):
        rated = [j for j in committed if streak[j] < patience]
        def edit(h): # [1, L, 4]
            h = h.clone()
            for j in rated:
                a, b, c, d = h[0, j].tolist()
                h[0, j] += push * torch.tensor([-c, -d, a, b], dtype=h.dtype)
            return h
        every = torch.ones(1, L, dtype=torch.bool)
        d = drawn(model.embedded(x[None], edit).logits(every).softmax(-1))
        return d, rated, {j: d[j][1] for j in rated if d[j][0] != x[j]}
    rule = asrd(accept, patience, push, length)
    agree(model, rule, prefixes(L, 5, P), accept, length, look)

# ---- Shadows

@pytest.mark.parametrize('kw', [{}, dict(boxes=(2, 2), model_length=16)], ids=['text', 'grid'])
@pytest.mark.parametrize('together', [False, True])
def test_shadows_are_those_of_one_long_sequence(kw, together):
    "Whatever other rows ask for; and no token reads them"
    model, g, same = lm(5, **kw), torch.Generator().manual_seed(0), dict(atol=1e-12, rtol=1e-12)
    x = torch.randint(0, 11, (4, model.length), generator=g)
    where = torch.rand(x.shape, generator=g) < torch.tensor([.1, .5, .9, 0.])[:, None]
    where[0, 3] = True
    p = model.shadow(x, where, together)
    for b in range(3):
        only = where & (torch.arange(4) == b)[:, None]
        _, shades = long_pass(model, x[b], where[b].nonzero()[:, 0].tolist(), together)
        torch.testing.assert_close(p.left_out(only), shades, **same)
    torch.testing.assert_close(p.logits(where), model(x).logits(where), **same)
