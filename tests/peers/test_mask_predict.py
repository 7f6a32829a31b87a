"""Mask-predict and RCR: their distribution, their stale memory and their counts."""
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.core import State, TopK, step
from navira.diffusion import Forward, drawer
from navira.peers.mask_predict import record, worst_counts
from navira.prism import low_quality
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import state
from helpers.revisers import Raw, conditional, drawn, fills, joint4, put, tv  # noqa: F401
from toys import ACCEPT, REJECT, Tiny, chi2, counted, planted

def mask_predict_texts(model, R, stale=True):
    L, M = model.length, model.mask_id
    expected = {((M,) * L, (0.,) * L): 1.}
    for i in range(R):
        new = Counter()
        for (x, c), w in expected.items():
            if not stale and i: c = tuple(conditional(model, x, j)[x[j]] for j in range(L))
            S = sorted(range(L), key=lambda j: c[j])[:max(1, L * (R - i) // R)] if i else list(range(L))
            seen = put(x, S, [M] * len(S))
            for tokens, q, own in fills(model, seen, S): new[put(x, S, tokens), put(c, S, own)] += w * q
        expected = new
    out = Counter()
    for (x, c), w in expected.items(): out[x] += w
    return out

def test_mask_predict_has_its_distribution_and_its_memory_is_stale(joint4):
    expected, fresh = mask_predict_texts(joint4, 4), mask_predict_texts(joint4, 4, stale=False)
    got = counted(drawn(joint4, 'mask-predict', 4, temperature=1.))
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT
    # naive: rate every token again in each pass
    assert tv(expected, fresh) > .01
    assert chi2(got, fresh) < REJECT

def test_mask_predict_by_hand():
    "Four positions: what was predicted first keeps its old probability, and is not asked again before its turn"
    # best probability at each position in the passes
    first, second = torch.tensor([.9, .3, .6, .5]), torch.tensor([.2, .95, .2, .7])
    class Known:
        mask_id, length, n = 8, 4, 0
        def __call__(self, x): self.n += 1; return KnownForward(x, (first, second, second)[self.n - 1])
    class KnownForward(Forward):
        def __init__(self, x, q):
            self.seen_masked, self.q = x == 8, torch.stack([q] + [(1 - q) / 7] * 7 + [0 * q], 1).double()
        def logits(self, where): return self.q.expand(len(where), -1, -1)[where].log()
    rule, model = policy('mask-predict'), Known()
    st = State.start(torch.full((1, 4), 8), 8, 3, Noise(0, torch.tensor([0])))
    gone = []
    for i in range(3):
        st = step(rule, st, model, lambda policy, st, p, clean, after: gone.append(clean.masked[0].tolist()))
    assert gone[1] == [False, True, False, True]                               # 4 * 2 // 3 = 2 lowest of .9 .3 .6 .5
    # of .9 .95 .6 .7; asked again, position 0 (.2) would go
    assert gone[2] == [False, False, True, False]
    assert st.conf[0].tolist() == pytest.approx([.9, .95, .2, .7])

def test_mask_predict_counts_are_whole():
    # row b has b + 1 free positions
    st = state(torch.ones(40, 40).long(), 9, 0, 1, fixed=torch.arange(40)[:, None] < torch.arange(40))
    for R in range(1, 41):
        for i in range(R):
            expected = [0 if i == 0 else min(n, max(1, n * (R - i) // R)) for n in range(1, 41)]
            assert worst_counts(replace(st, i=i, n=R)).tolist() == expected
    assert int(5 * (1 - 8 / 10)) == 0 and 5 * 2 // 10 == 1                     # naive: a float that truncates one low

def test_mask_predict_in_one_iteration_is_the_best_guess_and_one_text():
    model = Raw(9, 4)
    best = model(torch.full((1, 9), 4)).logits(torch.ones(1, 9, dtype=torch.bool)).argmax(-1)
    out = sample(model, 'mask-predict', 1, 20).tokens
    assert torch.equal(out, best.expand(20, -1)) and len(sample(model, 'mask-predict', 6, 20).tokens.unique(dim=0)) == 1

def test_a_score_that_needs_a_pass_makes_mask_predict_dearer():
    "From memory a step costs one pass; a score that asks the network is no error, and costs one more"
    model, cheap = Raw(5, 3), policy('mask-predict')
    assert (sample(model, cheap, 3, 4).n_forward == 3).all()
    out = sample(model, replace(cheap, remask=TopK(low_quality, worst_counts)), 3, 4)
    assert out.n_steps == 3 and (out.n_forward == 5).all() and not (out.tokens == model.mask_id).any()

# ---- rcr

def rcr_loop(model, x, T, length, running, seed, temperature):
    "RCR's loop, position by position: the ids and the numbers of forward passes"
    x, M = x.clone(), model.mask_id
    free = [j for j in range(len(x)) if x[j] == M]
    length = length or len(free)
    n_blocks = len(free) // length
    fold = dict(last=lambda old, new: new, highest=max, lowest=min)[running]
    noise, draw, kept, n = Noise(seed, torch.tensor([0])), drawer(temperature), {}, 0
    for b in range(n_blocks):
        S, pool = T // n_blocks, free[:(b + 1) * length]
        for i in range(S):
            masks = torch.tensor([j in pool and x[j] == M for j in range(len(x))])
            if masks.any():
                u = noise.uniform(b * S + i, 'token', len(x))[0]
                tokens, q = draw(model(x[None]).logits(masks[None]), u[masks])
                n += 1
                for j, v, c in zip(masks.nonzero()[:, 0].tolist(), tokens, q.tolist()):
                    x[j], kept[j] = v, fold(kept[j], c) if j in kept else c
            if i < S - 1: x[sorted(pool, key=kept.get)[:length * (S - i - 1) // S]] = M
    return x, n

@pytest.mark.parametrize('running', ['last', 'highest', 'lowest'])
@given(hs.integers(0, 10**6), hs.integers(0, 3), hs.sampled_from([(8, None), (8, 4), (6, 2), (5, None), (9, 3)]),
       hs.integers(1, 4), hs.sampled_from([0., 1.]))
def test_rcr_is_its_loop(running, seed, P, shape, per_block, temperature):
    (G, length), model = shape, Tiny(P + shape[0], 5, seed=seed % 97)
    T, x = per_block * (G // (length or G)) * (1 if length else 2), torch.full((1, P + G), 5)
    x[0, :P] = torch.arange(P)
    out = sample(model, 'rcr', T, 1, seed, prompt=x, running=running, block_length=length, temperature=temperature,
                 top_p=1.)
    want, n = rcr_loop(model, x[0], T, length, running, seed, temperature)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

def test_rcr_is_mask_predict_where_there_are_no_more_steps_than_tokens():
    model = Raw(9, 4)
    run = lambda name, T: sample(model, name, T, 30, temperature=1., top_p=1., trace=True)
    for T in range(1, 10): assert torch.equal(run('rcr', T).trace.x, run('mask-predict', T).trace.x)
    a, b = run('rcr', 20), run('mask-predict', 20)
    assert (b.n_forward == 20).all() and (a.n_forward < 20).all()      # it sits out where nothing is to be masked

def test_a_record_is_of_its_position_and_row():
    "What a position once had stays known while it is masked, and in no other row"
    st = state([[0, 9, 1], [1, 0, 1]], 9, 1, 3, conf=[[.5, torch.nan, .9], [.2, .4, .3]])
    st = st.remember(running=torch.tensor([[.5, .1, .9], [.2, .4, .3]], dtype=torch.float64))
    assert record(st[torch.tensor([True, False])], None, st.committed[:1]).tolist() == [[-.5, -.1, -.9]]
    st = replace(st, memory={})
    assert record(st, None, st.committed)[1].tolist() == [-.2, -.4, -.3]

def test_a_tie_never_reaches_the_prompt():
    "All that was written has probability 1, as a prompt that `has none` has in the public code"
    class Certain(Forward):
        mask_id, length = 3, 6
        def __call__(self, x): return self
        def logits(self, where): return torch.tensor([0., 99., 0., -torch.inf]).expand(int(where.sum()), 4)
    x = torch.tensor([[0, 3, 2, 3, 3, 0]])
    out = sample(Certain(), 'rcr', 3, 200, prompt=x, trace=True)
    assert (out.tokens == torch.tensor([0, 1, 2, 1, 1, 0])).all()
    counts = out.trace.remasked.sum(2)
    assert (counts == torch.tensor([0, 2, 1])[:, None]).all()
    share = out.trace.remasked[1].float().mean(0)[[1, 3, 4]]
    assert (share - 2 / 3).abs().max() < .15                             # and the tie is broken by noise
    confidences = torch.tensor([0., 1., 0., 1., 1., 0.])
    naive = torch.where(confidences == 0, 1., confidences)
    assert (naive == 1).all()                                            # naive: prompt and text are alike

def test_rcr_in_blocks_returns_to_the_first_and_never_runs_ahead():
    model = Raw(6, 4)
    out = sample(model, 'rcr', 6, 200, temperature=1., block_length=3, trace=True)
    assert (out.trace.x[1:4, :, 3:] == 4).all() and not (out.trace.x[1:, :, :3] == 4).any()
    assert out.trace.remasked[4:, :, :3].any() and not out.trace.remasked[3].any()

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'mask-predict', dict(temperature=-1.), 'temperature=-1'),
        (ValueError, 'rcr', dict(temperature=-1.), 'temperature=-1'),
        (ValueError, 'rcr', dict(top_p=0.), 'top_p=0'),
        (ValueError, 'rcr', dict(block_length=0), 'block_length=0'),
        (KeyError, 'rcr', dict(running='lowst'), "did you mean 'lowest'"),
    ],
)
def test_bad_input_is_named_when_the_policy_is_built(error, name, hyper, text):
    with pytest.raises(error) as e: policy(name, **hyper)
    assert text in str(e.value)

def test_blocks_that_do_not_fit_are_named_before_a_pass():
    model = Raw(9, 4)
    with pytest.raises(ValueError, match='does not divide'): sample(model, 'rcr', 9, 2, block_length=4)
    with pytest.raises(ValueError, match='at least 3'): sample(model, 'rcr', 2, 2, block_length=3)
    assert not model.rows
