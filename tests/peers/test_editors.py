"""LLaDA2.1, T2M, RDD and ProSeCo against plain loops."""
from dataclasses import replace

import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.sampler.draws import nucleus
from navira.peers.editors import llada2_edit, proseco, rdd, t2m
from navira.sampling import sample
from helpers.peers import best, everywhere, prefixes, prompts, Raw, run, started
from toys import pick, truncate

STRATEGIES = [('low-prob', .1), ('low-prob', .3), ('low-prob', .6), ('take-over', .5),
              ('take-over', .9), ('drop', .02), ('drop', .3)]

# ---- block by block

def doubtful(sign, p, before, old, new, q, stand): # {position: doubt}
    name, at = sign
    if name == 'low-prob': doubt = {j: 1 - p[j, old[j]] for j in stand if p[j, old[j]] < at}
    if name == 'take-over': doubt = {j: q[j] for j in stand if new[j] != old[j] and q[j] > at}
    if name == 'drop':
        fall = {} if before is None else {j: before[j, old[j]] - p[j, old[j]] for j in stand}
        doubt = {j: v for j, v in fall.items() if v > at}
    return doubt

def blockwise(model, x, length, theta, post, edit=None, sign=None, most=0, share=0.):
    "One row as the public loops have it; `edit` is a threshold, `sign` a name and a threshold"
    x, M, passes = x.clone(), model.mask_id, 0
    free = [j for j in range(len(x)) if x[j] == M]
    length = len(free) if length is None else length
    for block in (free[k:k + length] for k in range(0, len(free), length)):
        full, counts, before = 0, dict.fromkeys(block, 0), None
        while True:
            masks = [j for j in block if x[j] == M]
            full += not masks
            if not masks and (full > post or edit is None and sign is None): break
            p, old, stand = everywhere(model, x), x.clone(), [j for j in block if j not in masks]
            new, q = p.argmax(-1), p.amax(-1)
            passes += 1
            fill = [j for j in masks if q[j] > theta] or sorted(masks, key=lambda j: -q[j])[:1]
            x[fill], gone = new[fill], []
            if edit is not None:
                gone = [j for j in stand if new[j] != old[j] and q[j] > edit]
                x[gone] = new[gone]
            elif sign is not None and stand:
                doubt = doubtful(sign, p, before, old, new, q, stand)
                if sign[0] == 'drop': before = p
                may = [j for j in doubt if counts[j] < most]
                gone = sorted(may, key=lambda j: -doubt[j])[:max(1, int(len(stand) * share))]
                x[gone] = M
                for j in gone: counts[j] += 1
            if not masks and not gone: break
    return x, passes

def generous(x, M, length, post): # steps that no public loop exceeds
    n = (x == M).sum(1).max().item()
    return n + (post + 1) * (1 if length is None else -(-n // length)) + 1

lengths, posts = hs.sampled_from([None, 1, 2, 3, 5]), hs.sampled_from([0, 1, 3, 16])
shape = hs.tuples(hs.integers(2, 9), hs.integers(2, 5), hs.integers(0, 2**40))
thetas = hs.sampled_from([.3, .7, 1.])

@given(shape, lengths, posts, thetas, hs.sampled_from([None, 0., .4, .8, 1.]))
def test_llada2_edit_is_the_public_loop(shape, length, post, theta, edit):
    L, V, seed = shape
    model, x = Raw(L, V, seed=seed % 997), prompts(L, V, seed)
    rule = llada2_edit(theta, edit, post, length)
    out = sample(model, rule, generous(x, V, length, post), 3, seed, prompt=x)
    for b in range(3):
        tokens, passes = blockwise(model, x[b], length, theta, post, edit)
        assert torch.equal(out.tokens[b], tokens) and out.n_forward[b] == passes

@given(shape, lengths, posts, thetas, hs.sampled_from(STRATEGIES), hs.integers(0, 3),
       hs.sampled_from([0., .25, .6]))
def test_t2m_is_the_public_loop(shape, length, post, theta, sign, most, share):
    L, V, seed = shape
    model, x = Raw(L, V, seed=seed % 997), prompts(L, V, seed)
    rule = t2m(*sign, most, share, theta, post, length)
    budget = (most + 1) * generous(x, V, length, post) + 2 * most * L
    out = sample(model, rule, budget, 3, seed, prompt=x)
    for b in range(3):
        tokens, passes = blockwise(model, x[b], length, theta, post, None, sign, most, share)
        assert torch.equal(out.tokens[b], tokens)
        assert out.n_forward[b] <= passes                   # none to remask nothing

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

@given(hs.integers(0, 99), hs.integers(1, 5), hs.sampled_from([.25, .5, 1.]),
       hs.sampled_from([.3, .5, .7, .9]), hs.sampled_from([2, 3, 5, 12]))
def test_rdd_is_its_loop(seed, P, sharp, threshold, length):
    model, x = Raw(12, 5, seed=seed, sharp=sharp), prefixes(12, 5, P)
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
    model, x = Raw(L, V, seed=seed % 997), prompts(L, V, seed)
    rule = replace(proseco(times, every), draw=nucleus(P))
    st = run(rule, started(x, V, T, seed), model)
    tokens, passes = drafted(model, x, T, seed, times, every, P)
    assert torch.equal(st.x, tokens) and st.n_forward.tolist() == passes
    assert st.n_forward.max() <= rule.step.most(T)
