"LocalLeap, dInfer's hierarchy and Credit against their loops, block by block, at temperature 0."
import torch
from hypothesis import given, strategies as hs

from navira.peers.yielding import credit, hierarchy, local_leap
from navira.sampling import sample
from helpers.peers import at_masks, best, by_blocks, prefixes
from toys import Tiny

def written(q, enough): # of the masks of a block
    "Those that are as probable as is enough for each, or the surest"
    c = {j: v.max().item() for j, v in q.items()}
    chosen = [j for j in c if c[j] >= enough(j, c)] or best(c, 1)
    return {j: q[j].argmax() for j in chosen}

def leap_loop(model, tau, low, radius):
    def enough(j, c):
        near = any(c[a] >= tau for a in c if abs(a - j) <= radius)
        return min(low, tau) if near else tau
    def choose(x, masks, age): return written({j: at_masks(model, x)[j] for j in masks}, enough)
    return choose

def hierarchy_loop(model, tau, low):
    def enough(j, c):
        stretch = [k for k in c if {*range(min(j, k), max(j, k))} <= {*c}]
        return min(low, tau) if c[j] == max(c[k] for k in stretch) else tau
    def choose(x, masks, age): return written({j: at_masks(model, x)[j] for j in masks}, enough)
    return choose

def credit_loop(model, tau, alpha, gamma, beta):
    C = {}
    def choose(x, masks, age):
        q = {j: at_masks(model, x)[j] for j in masks}
        for j, v in q.items():
            C[j] = beta * C.get(j, torch.zeros_like(v))
            C[j][v.argmax()] += v.max() ** gamma
        return written({j: (v.log() + alpha * (1 + C[j]).log()).softmax(0) for j, v in q.items()},
                       lambda j, c: tau)
    return choose

taus, lows = hs.sampled_from([.3, .5, .7, .9]), hs.sampled_from([.2, .4, .6])
cases = hs.one_of(
    hs.tuples(hs.just((local_leap, leap_loop)), taus, lows, hs.integers(0, 3)),
    hs.tuples(hs.just((hierarchy, hierarchy_loop)), taus, lows),
    hs.tuples(hs.just((credit, credit_loop)), taus, hs.sampled_from([.7, 2.]),
              hs.sampled_from([0., .2, 1.]), hs.sampled_from([0., .8, 1.])))

@given(hs.integers(0, 60), hs.sampled_from([(0, 11), (3, 4), (2, 6)]), cases)
def test_it_is_its_loop(seed, shape, case):
    (P, length), model = shape, Tiny(11, 5, seed=seed, sharp=2.)
    (rule, loop), *hyper = case
    x = prefixes(11, 5, P, 9 - P)
    out = sample(model, rule(*hyper, block_length=length), 1, prompt=x)
    for row, got, n in zip(x, out.tokens, out.n_forward):
        want, passes = by_blocks(model, row, length, loop(model, *hyper))
        assert torch.equal(got, want) and n == passes
