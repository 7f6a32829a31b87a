"KLASS, Fast-dLLM++ and PUNT against their loops; the page enumerates the others."
import math
from dataclasses import replace

import torch
from hypothesis import given, strategies as hs

from navira.sampler.draws import greedy
from navira.peers.adaptive import fast_dllm_plus, klass, punt
from navira.sampling import sample
from helpers.peers import at_masks, best, prefixes
from toys import Tiny


# ---- klass

def klass_loop(model, x, length, tau, near, H): # one row, full distributions of every pass
    x, P, past = x.clone(), int((x != model.mask_id).sum()), []
    for b in range(P, len(x), length):
        age = 0
        while (x[b:b + length] == model.mask_id).any():
            past.append({j: v.double().tolist() for j, v in at_masks(model, x).items()})
            q, age = past[-1], age + 1
            block = [j for j in q if j < b + length]
            def moved(j, h):
                if len(past) < h + 2: return math.inf
                now, was = past[-h - 1][j], past[-h - 2][j]
                return sum(a * math.log(a / c) for a, c in zip(now, was) if a > 0)
            def ready(j):
                return max(q[j]) > tau and age >= H and all(moved(j, h) < near for h in range(H))
            chosen = [j for j in block if ready(j)] or best({j: max(q[j]) for j in block}, 1)
            for j in chosen: x[j] = q[j].index(max(q[j]))
    return x, len(past)

def sharp(seed):
    "`Tiny`, much surer of its tokens"
    model = Tiny(11, 5, seed=seed)
    model.W = 2 * model.W
    return model

@given(hs.integers(0, 60), hs.sampled_from([(0, 11), (3, 4), (2, 6)]),
       hs.sampled_from([.2, .4, .6, .9]), hs.sampled_from([1e-3, .02, .1, 1., 20.]),
       hs.integers(1, 3))
def test_klass_is_its_loop(seed, shape, tau, near, H):
    (P, length), model = shape, sharp(seed)
    x = prefixes(11, 5, P)
    out = sample(model, klass(tau, near, H, length), 1, prompt=x)
    want, n = klass_loop(model, x[0], length, tau, near, H)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

# ---- fast-dllm-plus

def fitted(model, x, length, margin): # Fast-dLLM++'s loop: the text, the number of passes
    x, P, n = x.clone(), int((x != model.mask_id).sum()), 0
    for b in range(P, len(x), length):
        while any(x[b:b + length] == model.mask_id):
            q = {j: v for j, v in at_masks(model, x).items() if j < b + length}
            order, c = best({j: v.max().item() for j, v in q.items()}, len(q)), []
            for j in order:
                c.append(q[j].max().item())
                lower, upper = max(0, sum(c) - (len(c) - 1)), 1 - c[-1]
                if len(c) > 1 and lower - upper < margin: break
                x[j] = q[j].argmax()
            n += 1
    return x, n

@given(hs.integers(0, 60), hs.sampled_from([(0, 11), (3, 4), (2, 6)]),
       hs.sampled_from([0., .1, .25, .7]))
def test_fast_dllm_plus_is_its_loop(seed, shape, margin):
    (P, length), model = shape, sharp(seed)
    x = prefixes(11, 5, P)
    out = sample(model, fast_dllm_plus(margin, length), 1, prompt=x)
    want, n = fitted(model, x[0], length, margin)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n




# ---- punt

def probed(model, x, eps): # PUNT's loop at temperature 0
    x, n = x.clone(), 0
    while (x == model.mask_id).any():
        q, n = at_masks(model, x), n + 1
        order = best({j: v.max().item() for j, v in q.items()}, len(q))
        kept = order
        for b in reversed(range((len(order) - 1).bit_length())):
            anchors = [j for j in kept if not order.index(j) >> b & 1]
            if len(anchors) == len(kept): continue
            z, n = x.clone(), n + 1
            for j in anchors: z[j] = q[j].argmax()
            r = at_masks(model, z)
            def moved(j): return sum(a * math.log(a / c) for a, c in zip(q[j], r[j]) if a > 0)
            kept = [j for j in kept if j in anchors or moved(j) <= eps]
        for j in kept: x[j] = q[j].argmax()
    return x, n

@given(hs.integers(0, 60), hs.sampled_from([0, 3, 6]),
       hs.sampled_from([1e-6, .003, .03, .3, 3., math.inf]))
def test_punt_is_its_loop_and_charges_its_tests(seed, P, eps):
    model, x = Tiny(11, 5, seed=seed), prefixes(11, 5, P, 10 - P)
    out = sample(model, replace(punt(eps), draw=greedy), 1, prompt=x)
    assert out.n_forward.sum() == sum(model.rows)
    for row, got, n in zip(x, out.tokens, out.n_forward):
        want, passes = probed(model, row, eps)
        assert torch.equal(got, want) and n == passes
