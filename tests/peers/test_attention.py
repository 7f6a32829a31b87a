"""Rules that read attention, against their loops written out."""
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as hs

import navira
from navira.diffusion import drawer
from navira.exact import counts, Distribution
from navira.joint import random_joint
from navira.peers.attention import AttendedPass, context, dawn, demask, dos, greedily
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import best, prompts, state
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

def chosen(weight, order, limit):
    "The greedy choice, one after the other"
    kept, spent = [], 0.
    for i in order:
        more = spent + sum(weight[i][j] for j in kept)
        if more <= limit: kept, spent = kept + [i], more
    return kept, spent

@given(hs.integers(0, 999), hs.integers(1, 7), hs.sampled_from([0., .5, 1., 3., math.inf]))
def test_the_greedy_choice_stays_within_the_limit_and_leaves_out_only_what_exceeds_it(seed, n,
                                                                                      limit):
    g = torch.Generator().manual_seed(seed)
    weight = torch.rand(3, n, n, generator=g, dtype=torch.float64)
    weight[weight < .3] = 0.
    rank = torch.rand(3, n, generator=g).argsort(1).argsort(1)
    node = torch.rand(3, n, generator=g) < .7
    got = greedily(weight, rank, node, limit)
    for b in range(3):
        order = [i for i in rank[b].argsort().tolist() if node[b, i]]
        kept, spent = chosen(weight[b].tolist(), order, limit)
        assert spent <= limit and sorted(kept) == got[b].nonzero()[:, 0].tolist()

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

@settings(max_examples=12)
@given(hs.integers(0, 30), hs.sampled_from([0., .1, .5, 9.]))
def test_what_demask_fills_together_depends_little_on_each_other(seed, tau):
    model, x = lm(seed, 1.), prompts(L, M, seed, rows=2)
    for now, masks, new in steps(sample(model, demask(tau), 1, prompt=x, trace=True)):
        p, _, read = known(model, now)
        assert sorted(chosen(read, sorted(masks, key=lambda j: -p[j]), tau)[0]) == new

@pytest.mark.parametrize('rule, F', [
    (replace(dos(), draw=drawer()), 3), (replace(dos(0.), draw=drawer()), 1), (demask(0.), 1)],
    ids=['dos', 'dos, gamma=0', 'demask'])
def test_one_token_at_a_time_gives_the_joint(rule, F):
    model = random_joint(3, 3, seed=4)
    joint = Distribution.of(model.joint.flatten(), model.outcomes)
    assert joint.holds(counts(model, rule, F, seed=1))

def test_a_prompt_is_a_visible_token():
    model = small_lm(3).double()
    st = state([[1, M, M, 2]], M, 0, 3, fixed=[[True, False, False, False]])
    p = AttendedPass(model, st)
    score = context(st, p, st.masked)
    torch.testing.assert_close(score, p.read[..., [0, 3]].sum(-1))

@pytest.mark.parametrize('name', ['dos', 'dawn', 'demask'])
def test_a_row_does_not_depend_on_longer_ones(pytestconfig, name):
    model = navira.load(pytestconfig.rootpath / 'tests' / 'golden' / 'llada').double()
    texts = [[5, 6], [7, 8, 9, 10, 11, 12], [13]]
    given = dict(budget=4, max_new_tokens=8, seed=1)
    low = dict(threshold=.02, tau_induce=.015, tau_low=.01)     # a random network is never sure
    rule = policy(name, **low if name == 'dawn' else {})
    together = sample(model, rule, prompt=texts, **given)
    for b, text in enumerate(texts):
        alone = sample(model, rule, n=range(b, b + 1), prompt=[text], **given)
        n = len(text) + 8
        assert torch.equal(together.tokens[b, :n], alone.tokens[0, :n])
        assert together.n_forward[b] == alone.n_forward[0]
