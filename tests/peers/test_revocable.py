"""Saber, RDD, COVER, ASRD, reflective: each against its loop, for one row at temperature 0."""
import math

import torch
from hypothesis import given, strategies as hs

from navira.peers.revocable import asrd, cover, rdd, reflective, saber
from navira.sampling import sample
from helpers.peers import best, everywhere, prefixes, Raw

L, V = 12, 5                # the mask is V

def both(rule, loop, seed, P, sharp, budget=1, *settings):
    "Our tokens and passes, and the loop's"
    model, x = Raw(L, V, seed=seed, sharp=sharp), prefixes(L, V, P)
    out = sample(model, rule, budget, prompt=x)
    return (out.tokens[0].tolist(), out.n_forward[0]), loop(model, x[0].clone(), P, *settings)

def masks_in(x, where): return [j for j in where if x[j] == V]

def drawn(q): return {j: (int(v.argmax()), v.max().item()) for j, v in enumerate(q)}

shapes = dict(seed=hs.integers(0, 99), P=hs.integers(1, 5), sharp=hs.sampled_from([.25, .5, 1.]))

# ---- saber

def saber_loop(model, x, P, n):
    free, passes, before, written = range(P, L), 0, {}, {}
    while masks_in(x, free):
        masks, d = masks_in(x, free), drawn(everywhere(model, x))
        mean = sum(written.values()) / len(written) if written else math.inf
        chosen = best({j: d[j][1] for j in masks}, n)
        chosen += [j for j in masks if d[j][1] > mean and j not in chosen]
        for j in chosen: x[j], written[j] = d[j]
        if masks_in(x, free):
            fall = {j: before.get(j, 0) - d[j][1] for j in free if x[j] != V}
            k = min(max(n // 2, math.ceil(len(chosen) / 8)), len(chosen) - 1)
            x[best(fall, k)] = V
        before, passes = {j: d[j][1] for j in free}, passes + 1
    return x.tolist(), passes

@given(n=hs.integers(1, 6), **shapes)
def test_saber_is_its_loop(seed, P, sharp, n):
    ours, loop = both(saber(n), saber_loop, seed, P, sharp, 1, n)
    assert ours == loop and loop[1] <= L - P

# ---- rdd

def rdd_loop(model, x, P, threshold, length):
    blocks, b, passes = [list(range(a, L))[:length] for a in range(P, L, length)], 0, 0
    written, remasked = {}, set()
    while b < len(blocks):
        d, passes = drawn(everywhere(model, x)), passes + 1
        masks = masks_in(x, blocks[b])
        sure = [j for j in masks if d[j][1] > threshold]
        unsure = [] if sure or not b else [j for j in blocks[b - 1] if j not in remasked
                                           and written[j] < threshold]
        if unsure:
            again = unsure + [j for j in blocks[b] if x[j] != V]
            remasked |= set(again)
            x[again] = V
            b -= 1
            continue
        for j in sure or best({j: d[j][1] for j in masks}, 1): x[j], written[j] = d[j]
        while b < len(blocks) and not masks_in(x, blocks[b]): b += 1
    return x.tolist(), passes

@given(threshold=hs.sampled_from([.3, .5, .7, .9]), length=hs.sampled_from([2, 3, 5, 12]),
       **shapes)
def test_rdd_is_its_loop(seed, P, sharp, threshold, length):
    rule = rdd(threshold, length)
    ours, loop = both(rule, rdd_loop, seed, P, sharp, 99, threshold, length)
    assert ours == loop


# ---- cover and asrd

def revoking(x, P, threshold, length, look):
    """Accept above the threshold, then revoke fewer tokens than the step before accepted.
    `look(x, block, committed, written, streak, last)` gives {position: (token, probability)}, the
    tokens that it rates, and for each of these that is wrong a doubt."""
    passes, last, written, streak = 0, 0, {}, dict.fromkeys(range(L), 0)
    for block in [list(range(a, L))[:length] for a in range(P, L, length)]:
        while masks_in(x, block):
            masks = masks_in(x, block)
            committed = [j for j in block if j not in masks]
            d, rated, wrong = look(x, committed, written, streak, last)
            first = best({j: d[j][1] for j in masks}, 1)
            sure = [j for j in masks if d[j][1] >= threshold] or first
            for j in sure: x[j], written[j] = d[j]
            if len(sure) > 1: x[best(wrong, last - 1)] = V
            for j in rated: streak[j] = 0 if j in wrong else streak[j] + 1
            for j in sure: streak[j] = 0
            last, passes = len(sure), passes + 1
    return x.tolist(), passes

def cover_loop(model, x, P, threshold, length, most):
    def look(x, committed, written, streak, last):
        risk = {j: (1 - written[j]) / (1 + streak[j]) for j in committed}
        seeds, wrong = best(risk, min(last, most)), {}
        for j in seeds:
            y = x.clone()
            y[j] = V
            token, q = drawn(everywhere(model, y))[j]
            if token != x[j]: wrong[j] = q
        return drawn(everywhere(model, x)), seeds, wrong
    return revoking(x, P, threshold, length, look)

class LeftOut(Raw):
    "Whose shadows are passes in which the token is masked"
    def shadow(self, x, where, together=False):
        forward = self(x)
        def left_out(at):
            rows = [self(x[b:b + 1].scatter(1, j.view(1, 1), V)).logits(
                torch.arange(L)[None] == j) for b, j in at.nonzero()]
            return torch.cat(rows)
        forward.left_out = left_out
        return forward

@given(threshold=hs.sampled_from([.2, .4, .6]), length=hs.sampled_from([3, 5, 12]),
       most=hs.sampled_from([0, 1, 3, 8]), **shapes)
def test_cover_is_its_loop(seed, P, sharp, threshold, length, most):
    model, x = LeftOut(L, V, seed=seed, sharp=sharp), prefixes(L, V, P)
    out = sample(model, cover(threshold, most, length), 1, prompt=x)
    want, passes = cover_loop(model, x[0].clone(), P, threshold, length, most)
    assert out.tokens[0].tolist() == want and out.n_forward[0] == passes <= L - P

def asrd_loop(model, x, P, threshold, length, patience, push):
    def look(x, committed, written, streak, last):
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
    return revoking(x, P, threshold, length, look)

@given(threshold=hs.sampled_from([.2, .4, .6]), length=hs.sampled_from([3, 5, 12]),
       patience=hs.integers(1, 3), push=hs.sampled_from([0., .5, 2.]), **shapes)
def test_asrd_is_its_loop(seed, P, sharp, threshold, length, patience, push):
    rule = asrd(threshold, patience, push, length)
    ours, loop = both(rule, asrd_loop, seed, P, sharp, 1, threshold, length, patience, push)
    assert ours == loop and loop[1] <= L - P

# ---- reflective

def reflective_loop(model, x, P, T, n):
    free, passes = range(P, L), 0
    for i in range(T):
        if i == T - 1 and not masks_in(x, free): break         # nothing is asked
        q, d, before = model(x[None]).quality()[0], drawn(everywhere(model, x)), x.clone()
        masks, passes = masks_in(x, free), passes + 1
        back = [j for j in free if x[j] != V and q[j] < 0 and i < T - 1]
        for j in best({j: d[j][1] for j in masks},
                      max(n, math.ceil((len(masks) + len(back)) / (T - i)))): x[j] = d[j][0]
        x[back] = V
        if torch.equal(x, before): break
    return x.tolist(), passes

@given(T=hs.integers(1, 24), n=hs.integers(1, 4), **shapes)
def test_reflective_is_its_loop(seed, P, sharp, T, n):
    ours, loop = both(reflective(n), reflective_loop, seed, P, sharp, T, T, n)
    assert ours == loop and V not in ours[0] and loop[1] <= T
