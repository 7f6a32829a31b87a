"""LLaDA2.1, T2M, RDD and ProSeCo against plain loops."""
from dataclasses import replace

import torch
from hypothesis import given, settings, strategies as hs

from navira.base.noise import Noise
from navira.sampler.draws import nucleus
from navira.peers.editors import llada2_edit, proseco, rdd, t2m
from navira.sampling import sample
from helpers.peers import best, everywhere, prefixes, prompts, run, started
from toys import pick, Tiny, truncate

SIGNS = [('edit', .4), ('edit', 0.), ('edit', 1.), ('low-prob', .1), ('low-prob', .3),
         ('low-prob', .6), ('take-over', .5), ('take-over', .9), ('drop', .02), ('drop', .3)]

# ---- block by block

def doubtful(sign, p, before, old, new, q, stand): # {position: doubt}
    name, at = sign
    if name == 'low-prob': return {j: 1 - p[j, old[j]] for j in stand if p[j, old[j]] < at}
    if name in ('take-over', 'edit'):
        return {j: q[j] for j in stand if new[j] != old[j] and q[j] > at}
    fall = {} if before is None else {j: before[j, old[j]] - p[j, old[j]] for j in stand}
    return {j: v for j, v in fall.items() if v > at}

def blockwise(model, x, length, theta, post, sign, most, share):
    "One row as the public loops have it; `sign` is a name and a threshold, or None"
    x, M, passes = x.clone(), model.mask_id, 0
    free = [j for j in range(len(x)) if x[j] == M]
    length = length or len(free)
    for block in (free[k:k + length] for k in range(0, len(free), length)):
        full, counts, before = 0, dict.fromkeys(block, 0), None
        while True:
            masks = [j for j in block if x[j] == M]
            full += not masks
            if not masks and (full > post or sign is None): break
            p, old, stand = everywhere(model, x), x.clone(), [j for j in block if j not in masks]
            new, q = p.argmax(-1), p.amax(-1)
            passes += 1
            fill = [j for j in masks if q[j] > theta] or sorted(masks, key=lambda j: -q[j])[:1]
            doubt = doubtful(sign, p, before, old, new, q, stand) if sign and stand else {}
            before = p if stand else None
            x[fill], gone = new[fill], list(doubt)
            if sign and sign[0] == 'edit': x[gone] = new[gone]
            else:
                may = {j: v for j, v in doubt.items() if counts[j] < most}
                gone = best(may, max(1, int(len(stand) * share)))
                x[gone] = M
                for j in gone: counts[j] += 1
            if not masks and not gone: break
    return x, passes

shape = hs.tuples(hs.integers(2, 9), hs.integers(2, 5), hs.integers(0, 2**40))

@given(shape, hs.sampled_from([None, 1, 2, 3, 5]), hs.sampled_from([0, 1, 3, 16]),
       hs.sampled_from([.3, .7, 1.]), hs.sampled_from([None, *SIGNS]), hs.integers(0, 3),
       hs.sampled_from([0., .25, .6]))
def test_llada2_edit_and_t2m_are_the_public_loops(shape, length, post, theta, sign, most, share):
    L, V, seed = shape
    model, x = Tiny(L, V, seed=seed % 997), prompts(L, V, seed)
    edits = not sign or sign[0] == 'edit'
    rule = llada2_edit(theta, sign and sign[1], post, length) if edits else t2m(
        *sign, most, share, theta, post, length)
    budget = 5 * L + L * (post + 1) * (most + 1)            # which no public loop exceeds
    out = sample(model, rule, budget, 3, seed, prompt=x)
    for b in range(3):
        tokens, passes = blockwise(model, x[b], length, theta, post, sign, most, share)
        assert torch.equal(out.tokens[b], tokens)
        # none to remask nothing
        assert out.n_forward[b] == passes if edits else out.n_forward[b] <= passes

# ---- rdd

def returning(model, x, P, threshold, length):
    "RDD's loop for one row"
    L, M, b, passes, written, remasked = len(x), model.mask_id, 0, 0, {}, set()
    blocks = [list(range(a, L))[:length] for a in range(P, L, length)]
    def masks_in(block): return [j for j in block if x[j] == M]
    while b < len(blocks):
        q, new = everywhere(model, x).max(-1)
        passes, masks = passes + 1, masks_in(blocks[b])
        sure = [j for j in masks if q[j] > threshold]
        unsure = [] if sure or not b else [j for j in blocks[b - 1] if j not in remasked
                                           and written[j] < threshold]
        if unsure:
            again = unsure + [j for j in blocks[b] if x[j] != M]
            remasked |= set(again)
            x[again] = M
            b -= 1
            continue
        for j in sure or best({j: q[j] for j in masks}, 1): x[j], written[j] = new[j], q[j]
        while b < len(blocks) and not masks_in(blocks[b]): b += 1
    return x, passes

@settings(max_examples=40)
@given(hs.integers(0, 99), hs.integers(1, 5), hs.sampled_from([.25, .5, 1.]),
       hs.sampled_from([.3, .5, .7, .9]), hs.sampled_from([2, 3, 5, 12]))
def test_rdd_is_its_loop(seed, P, sharp, threshold, length):
    model, x = Tiny(12, 5, seed=seed, sharp=sharp), prefixes(12, 5, P)
    out = sample(model, rdd(threshold, length), 40, prompt=x)
    tokens, passes = returning(model, x[0].clone(), P, threshold, length)
    assert torch.equal(out.tokens[0], tokens) and out.n_forward[0] == passes

# ---- proseco

def drafted(model, x, T, seed, times, every, P):
    "The public loop with its argmax corrections, by positions: tokens, passes that change any"
    x, M, (B, L), N = x.clone(), model.mask_id, x.shape, Noise(seed, torch.arange(len(x)))
    free, passes = [[j for j in range(L) if x[b, j] == M] for b in range(B)], [0] * B
    for i in range(T):
        u = {k: N.uniform(i, k, L).tolist() for k in ('flip', 'token')}
        for b in range(B):
            masks = [j for j in free[b] if x[b, j] == M]
            new = [j for j in masks if u['flip'][b][j] < 1 / (T - i)]
            correct = times and (i + 1) % every == 0 and (new or len(masks) < len(free[b]))
            if masks and (correct or new): p, passes[b] = everywhere(model, x[b]), passes[b] + 1
            if correct:
                y = x[b].clone()
                for j in masks: y[j] = p[j].argmax()
                for _ in range(times):
                    p, z = everywhere(model, y), y.clone()
                    for j in free[b]: z[j] = p[j].argmax()
                    passes[b] += 1
                    if torch.equal(z, y): break
                    y = z
                for j in free[b]: x[b, j] = M if j in masks else y[j]
            for j in new: x[b, j] = pick(truncate(p[j].tolist(), P), u['token'][b][j])
    return x, passes

@given(shape, hs.integers(1, 9), hs.integers(0, 4), hs.integers(1, 3), hs.sampled_from([.6, 1.]))
def test_proseco_is_the_public_loop(shape, T, times, every, P):
    L, V, seed = shape
    model, x = Tiny(L, V, seed=seed % 997), prompts(L, V, seed)
    rule = replace(proseco(times, every), draw=nucleus(P))
    st = run(rule, started(x, V, T, seed), model)
    tokens, passes = drafted(model, x, T, seed, times, every, P)
    assert torch.equal(st.x, tokens) and st.n_forward.tolist() == passes
    assert st.n_forward.max() <= rule.step.most(T)
