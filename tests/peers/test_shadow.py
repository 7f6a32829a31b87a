"""WINO against its loop written out, with a network whose shadows are computed by hand."""

import pytest
import torch
from hypothesis import given, settings, strategies as hs

from navira.models.layers import rotary, rotate
from navira.peers.shadow import wino
from navira.sampling import sample
from toys import small_lm

L, M = 12, 10

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
    for b in net.blocks:
        m = b.adaLN_modulation(c)[0].chunk(6)
        three = b.attn_qkv(b.norm1(h, m[0], m[1])).chunk(3, -1)
        q, k, v = (a.view(1, n + S, b.n_heads, -1).transpose(1, 2) for a in three)
        if rope is not None: q, k = rotate(q, *rope), rotate(k, *rope)
        a = (q @ k.mT / q.shape[-1] ** .5).masked_fill(~sees, -torch.inf).softmax(-1) @ v
        h = h + m[2] * b.attn_out(a.transpose(1, 2).flatten(2))
        h = h + m[5] * b.mlp(b.norm2(h, m[3], m[4]))
    out = net.output_layer(h, c)[0]
    out[:, model.mask_id] = -torch.inf
    return out[:n], out[n:]

def by_hand(model, x, T1, T2, length, together, most=20):
    "WINO's loop at temperature 0, for one row: the text, and the number of passes"
    x, n, P = x.clone(), 0, int((x != model.mask_id).sum())
    for b in range(P, len(x), length):
        block, last = list(range(b, min(b + length, len(x)))), 30
        while (x[block] == model.mask_id).any():
            masks = [j for j in block if x[j] == model.mask_id]
            plain, shades = (v.softmax(-1) for v in long_pass(model, x, block, together))
            sure = sorted(masks, key=lambda j: -plain[j].max().item())
            cap = min(max(7 * len(masks) // 10, 5), most)
            take = [j for j in sure if plain[j].max() > T1][:cap] or sure[:1]
            low = {j: shades[k, x[j]].item() for k, j in enumerate(block) if j not in masks}
            below = sorted((j for j in low if low[j] < T2), key=low.get)[:last - 1]
            for j in take: x[j] = plain[j].argmax()
            if len(take) > 1: x[below] = model.mask_id
            last, n = len(take), n + 1
    return x, n

@settings(max_examples=25)
@given(hs.integers(0, 30), hs.sampled_from([.3, .5, .7]), hs.sampled_from([.2, .6, .9, 1.]),
       hs.sampled_from([3, 5, 12]), hs.booleans(), hs.integers(1, 5), hs.sampled_from([2, 3, 20]))
def test_it_is_the_loop_of_its_authors(seed, T1, T2, length, together, given_, most):
    model, x = lm(seed), torch.full((2, L), M)
    x[0, :given_], x[1, :7 - given_] = torch.arange(given_), torch.arange(7 - given_) + 3
    rule = wino(T1, T2, length, most, 'together' if together else 'alone')
    out = sample(model, rule, 1, prompt=x)
    for row, got, n in zip(x, out.tokens, out.n_forward):
        want, passes = by_hand(model, row, T1, T2, length, together, most)
        assert got.tolist() == want.tolist() and n == passes

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
    got, row = p.left_out(where), where.nonzero()[:, 0]
    for b in range(3):
        _, shades = long_pass(model, x[b], where[b].nonzero()[:, 0].tolist(), together)
        torch.testing.assert_close(got[row == b], shades, **same)
        only = where & (torch.arange(4) == b)[:, None]
        torch.testing.assert_close(p.left_out(only), shades, **same)
    torch.testing.assert_close(p.logits(where), model(x).logits(where), **same)
