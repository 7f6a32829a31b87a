"KLASS, Fast-dLLM++ and PUNT against their loops; the page enumerates the others."
import math
from dataclasses import replace

import torch
from hypothesis import given, strategies as hs

from navira.peers.adaptive import fast_dllm_plus, klass, punt
from navira.sampler.draws import greedy
from navira.sampling import sample
from helpers.peers import at_masks, best, by_blocks, prefixes
from toys import Tiny

def kl(p, q): return (p[:-1] * (p[:-1] / q[:-1]).log()).sum()      # the mask, last, has 0

def klass_loop(model, tau, near, H):
    past = []
    def choose(x, masks, age):
        past.append(at_masks(model, x))
        q = past[-1]
        def moved(j, h):
            if len(past) < h + 2: return math.inf
            return kl(past[-h - 1][j], past[-h - 2][j])
        def ready(j):
            return q[j].max() > tau and age >= H and all(moved(j, h) < near for h in range(H))
        chosen = [j for j in masks if ready(j)] or best({j: q[j].max() for j in masks}, 1)
        return {j: q[j].argmax() for j in chosen}
    return choose

def fast_dllm_plus_loop(model, margin):
    def choose(x, masks, age):
        q = at_masks(model, x)
        order = best({j: q[j].max() for j in masks}, len(masks))
        c = [q[j].max().item() for j in order]
        def gap(n): return max(0, sum(c[:n]) - (n - 1)) - (1 - c[n - 1])
        n = next((n for n in range(2, len(c) + 1) if gap(n) < margin), len(c) + 1) - 1
        return {j: q[j].argmax() for j in order[:n]}
    return choose

near = hs.sampled_from([1e-3, .02, .1, 1., 20.])
cases = hs.one_of(
    hs.tuples(hs.just((klass, klass_loop)), hs.sampled_from([.2, .4, .6, .9]), near,
              hs.integers(1, 3)),
    hs.tuples(hs.just((fast_dllm_plus, fast_dllm_plus_loop)), hs.sampled_from([0., .1, .25, .7])))

@given(hs.integers(0, 60), hs.sampled_from([(0, 11), (3, 4), (2, 6)]), cases)
def test_it_is_its_loop(seed, shape, case):
    (rule, loop), *hyper = case
    (P, length), model = shape, Tiny(11, 5, seed=seed, sharp=2.)
    x = prefixes(11, 5, P)
    out = sample(model, rule(*hyper, block_length=length), 1, prompt=x)
    want, n = by_blocks(model, x[0], length, loop(model, *hyper))
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

def probed(model, x, eps): # PUNT's loop at temperature 0
    x, n = x.clone(), 0
    while (x == model.mask_id).any():
        q, n = at_masks(model, x), n + 1
        order = best({j: v.max() for j, v in q.items()}, len(q))
        kept = order
        for b in reversed(range((len(order) - 1).bit_length())):
            anchors = [j for j in kept if not order.index(j) >> b & 1]
            if len(anchors) == len(kept): continue
            z, n = x.clone(), n + 1
            for j in anchors: z[j] = q[j].argmax()
            r = at_masks(model, z)
            kept = [j for j in kept if j in anchors or kl(q[j], r[j]) <= eps]
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
