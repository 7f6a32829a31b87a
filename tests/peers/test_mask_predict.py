"""Mask-predict: its distribution, its stale memory and its counts."""
from collections import Counter
from dataclasses import replace

import pytest
import torch

from navira.base.noise import Noise
from navira.core import State, TopK, step
from navira.diffusion import Forward
from navira.peers.mask_predict import worst_counts
from navira.prism import low_quality
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import state
from helpers.revisers import Raw, conditional, drawn, fills, joint4, put, tv  # noqa: F401
from toys import ACCEPT, REJECT, chi2, counted, planted

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

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'mask-predict', dict(temperature=-1.), 'temperature=-1'),
    ],
)
def test_bad_input_is_named_when_the_policy_is_built(error, name, hyper, text):
    with pytest.raises(error) as e: policy(name, **hyper)
    assert text in str(e.value)
