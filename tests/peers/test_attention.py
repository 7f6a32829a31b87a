"""Rules that read attention, against their loops written out."""

import torch
from hypothesis import given, settings, strategies as hs

from navira.peers.attention import adas, dapd, dawn, dos
from navira.sampling import sample
from helpers.peers import best, by_blocks, prefixes, prompts
from toys import small_lm

L, M = 12, 10

def lm(seed):
    "Random weights, and sure of its predictions"
    model = small_lm(seed).double()
    model.backbone.output_layer.linear.weight.mul_(4.)
    return model

def dawn_loop(model, T, induce, low, edge, sink): # at temperature 0
    def choose(x, masks, age):
        p, (read,) = model.attending(x[None])
        prob, token = p.logits(torch.ones(1, L, dtype=torch.bool)).softmax(-1).max(-1)
        loud = read.mean(0) > sink
        def reads(i, some): return any(read[i, j] >= edge for j in some if not loud[j] and j != i)
        sure = {i for i in masks if prob[i] >= T}
        anchors = [j for j in range(L) if x[j] != M and prob[j] >= T]
        helped = {i for i in masks if prob[i] >= induce and reads(i, anchors)}
        rest = [i for i in masks if prob[i] >= low and i not in sure | helped
                and not reads(i, sure & helped)]
        apart = []
        for i in sorted(rest, key=lambda i: -prob[i]):
            if not reads(i, apart) and not any(reads(j, [i]) for j in apart): apart.append(i)
        chosen = sure | helped | {*apart} or best({i: prob[i] for i in masks}, 1)
        return {i: token[i] for i in chosen}
    return choose

@settings(max_examples=25)
@given(hs.integers(0, 30), hs.tuples(*map(hs.sampled_from, (
    [.5, .9], [.3, .6], [.2, .4], [.05, .1, .2], [.1, .12, 1.]))), hs.sampled_from([4, 12]))
def test_dawn_is_its_loop(seed, taus, length):
    model, x = lm(seed), prefixes(L, M, 2, 5)
    out = sample(model, dawn(*taus, length), 1, prompt=x)
    for row, got, n in zip(x, out.tokens, out.n_forward):
        want, passes = by_blocks(model, row, length, dawn_loop(model, *taus))
        assert got.tolist() == want.tolist() and n == passes

def read_at(model, x): # -> the probability and the token everywhere, what is read [L, L]
    p, (read,) = model.attending(x[None])
    return *p.logits(torch.ones(1, L, dtype=torch.bool)).softmax(-1).max(-1), read

def dapd_loop(model, tau, T, switch, free): # at temperature 0
    def choose(x, masks, age):
        prob, token, read = read_at(model, x)
        mutual, chosen = (read + read.T) / 2, []
        hub = {i: prob[i] * sum(mutual[i, j] for j in masks if j != i) for i in masks}
        if (x == M).sum() < switch * free:
            chosen = [i for i in masks if prob[i] >= T] or best({i: prob[i] for i in masks}, 1)
        else:
            for i in best(hub, len(hub)):
                if all(mutual[i, j] < tau for j in chosen): chosen.append(i)
        return {i: token[i] for i in chosen}
    return choose

@settings(max_examples=25)
@given(hs.integers(0, 30), hs.sampled_from([.05, .1, .2]), hs.sampled_from([.5, .9]),
       hs.sampled_from([0., .5, 1.]), hs.sampled_from([4, 12]))
def test_dapd_is_its_loop(seed, tau, T, switch, length):
    model, x = lm(seed), prefixes(L, M, 2, 5)
    out = sample(model, dapd(tau, T, switch, length), 1, prompt=x)
    for row, got, n in zip(x, out.tokens, out.n_forward):
        choose = dapd_loop(model, tau, T, switch, int((row == M).sum()))
        want, passes = by_blocks(model, row, length, choose)
        assert got.tolist() == want.tolist() and n == passes

@settings(max_examples=25)
@given(hs.integers(0, 30), hs.sampled_from([0., 1., 5., 40.]), hs.integers(1, 6))
def test_adas_is_its_loop(seed, alpha, T):
    model, x = lm(seed), prefixes(L, M, 2, 5)
    out = sample(model, adas(alpha), T, prompt=x)
    for row, got in zip(x.clone(), out.tokens):
        N = int((row == M).sum())
        for i in range(T):
            prob, token, read = read_at(model, row)
            chosen = []
            for _ in range(N // T + (i < N % T)):
                doubt = {s: 1 - prob[s] for s in chosen}
                worth = {j: prob[j] - alpha * sum(read[j, s] * d for s, d in doubt.items())
                         for j in range(L) if row[j] == M and j not in chosen}
                chosen += best(worth, 1)
            row[chosen] = token[chosen]
        assert got.tolist() == row.tolist()

@settings(max_examples=12)
@given(hs.integers(0, 30), hs.sampled_from([3, 5]))
def test_dos_fills_the_masks_that_read_most_of_what_is_written(seed, T):
    model = lm(seed)
    trace = sample(model, dos(), T, prompt=prompts(L, M, seed, share=.4), trace=True).trace
    for x, new in zip(trace.x[:-1].flatten(0, 1).long(), trace.unmasked.flatten(0, 1)):
        if (x == M).all(): continue                        # all read as much: nothing
        read = model.attending(x[None])[1][0, :, x != M].sum(1)
        score = {j: read[j] for j in (x == M).nonzero()[:, 0].tolist()}
        assert sorted(best(score, int(new.sum()))) == new.nonzero()[:, 0].tolist()
