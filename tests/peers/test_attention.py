"""Rules that read attention, against their loops written out."""

import torch
from hypothesis import given, settings, strategies as hs

from navira.peers.attention import dawn, dos
from navira.sampling import sample
from helpers.peers import best, prompts
from toys import small_lm

L, M = 12, 10

def lm(seed=0, sharp=4.):
    "Random weights, and sure of its predictions"
    model = small_lm(seed).double()
    model.backbone.output_layer.linear.weight.mul_(sharp)
    return model

def known(model, x):
    "Of one row: probability and token at every position, and what each reads of each"
    p, read = model.attending(x[None])
    top = p.logits(torch.ones(1, len(x), dtype=torch.bool)).softmax(-1).max(-1)
    return top.values.tolist(), top.indices.tolist(), read[0].tolist()


def by_dawn(model, x, T, induce, low, edge, sink, length):
    "DAWN's loop at temperature 0, for one row: the text, and the number of passes"
    x, P, n = x.clone(), int((x != M).sum()), 0
    for b in range(P, len(x), length):
        while (x[b:b + length] == M).any():
            p, token, read = known(model, x)
            loud = {j for j in range(len(x)) if sum(r[j] for r in read) / len(x) > sink}
            def reads(i, some):
                return any(read[i][j] >= edge for j in some if j not in loud and j != i)
            masks = [i for i in range(b, min(b + length, len(x))) if x[i] == M]
            sure = {i for i in masks if p[i] >= T}
            anchors = [j for j in range(len(x)) if x[j] != M and p[j] >= T]
            helped = {i for i in masks if p[i] >= induce and reads(i, anchors)}
            rest = [i for i in masks if p[i] >= low and i not in sure | helped
                    and not reads(i, sure & helped)]
            apart = []
            for i in sorted(rest, key=lambda i: -p[i]):
                if not reads(i, apart) and not any(reads(j, [i]) for j in apart): apart.append(i)
            for i in sure | helped | {*apart} or best({i: p[i] for i in masks}, 1): x[i] = token[i]
            n += 1
    return x, n

@settings(max_examples=25)
@given(hs.integers(0, 30), hs.sampled_from([.5, .9]), hs.sampled_from([.3, .6]),
       hs.sampled_from([.2, .4]), hs.sampled_from([.05, .1, .2]), hs.sampled_from([.1, .12, 1.]),
       hs.sampled_from([4, 12]))
def test_dawn_is_its_loop(seed, T, induce, low, edge, sink, length):
    model, x = lm(seed), torch.full((2, L), M)
    x[0, :2], x[1, :5] = torch.arange(2), torch.arange(5) + 3
    out = sample(model, dawn(T, induce, low, edge, sink, length), 1, prompt=x)
    for row, got, n in zip(x, out.tokens, out.n_forward):
        want, passes = by_dawn(model, row, T, induce, low, edge, sink, length)
        assert got.tolist() == want.tolist() and n == passes

def steps(out):
    "The text before each step of each row, what is masked in it, and what is filled"
    for i in range(out.n_steps):
        for x, new in zip(out.trace.x[i].long(), out.trace.unmasked[i]):
            masks = (x == M).nonzero()[:, 0].tolist()
            if masks: yield x, masks, new.nonzero()[:, 0].tolist()

@settings(max_examples=12)
@given(hs.integers(0, 30), hs.sampled_from([3, 5]))
def test_dos_fills_the_masks_that_read_most_of_what_is_written(seed, T):
    model, x = lm(seed), prompts(L, M, seed, share=.4)
    for now, masks, new in steps(sample(model, dos(), T, prompt=x, trace=True)):
        if (now == M).all(): continue                      # all as much: nothing
        read = model.attending(now[None])[1][0]
        score = {j: read[j, now != M].sum().item() for j in masks}
        assert sorted(best(score, len(new))) == new
