"""PRISM with a loop at the end: what a step of the loop gives, and what it costs."""
import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.core import step
from navira.peers.loops import looping
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import N, state
from helpers.revisers import Raw, conditional, joint4, kernel_row, tv  # noqa: F401
from toys import ACCEPT, REJECT, chi2, counted, planted

def test_a_loop_step_has_its_row(joint4):
    x = (1, 0, 0, 1)
    own = {j: conditional(joint4, x, j)[x[j]] for j in range(4)}
    random = {S: 1 / 6 for S in itertools.combinations(range(4), 2)}
    worst = {tuple(sorted(sorted(own, key=own.get)[:2])): 1.}
    for kind, sets in dict(random=random, head=worst).items():
        st = state(x, 2, 3, 4, N, seed=5)
        got = step(policy('prism-loop', loop_steps=1, n_remask_loop=2, score=kind, top_p=1.), st, joint4)
        expected = kernel_row(joint4, x, sets, clean=True)
        assert chi2(counted(got.x), expected) > ACCEPT and chi2(counted(got.x), planted(expected)) < REJECT
        assert (got.n_forward == (1 if kind == 'random' else 2)).all()

def test_gibbs_and_only_gibbs_keeps_the_joint(joint4):
    texts = list(itertools.product(range(2), repeat=4))
    pi = dict(zip(texts, joint4.joint.flatten().tolist()))
    def after(sets, clean):
        out = Counter()
        for x in texts:
            for y, q in kernel_row(joint4, x, sets(x), clean).items(): out[y] += pi[x] * q
        return tv(out, pi)
    one = lambda x: {(j,): .25 for j in range(4)}
    worst = lambda x: {(min(range(4), key=lambda j: conditional(joint4, x, j)[x[j]]),): 1.}
    two = lambda x: {S: 1 / 6 for S in itertools.combinations(range(4), 2)}
    assert after(one, True) < 1e-15 and after(one, False) < 1e-15
    assert min(after(worst, True), after(two, False)) > 1e-3
    # even the cleaned pair: drawn as a product
    assert after(two, True) > 1e-3

@pytest.mark.parametrize('kind', ['random', 'head'])
def test_no_loop_is_prism(kind):
    model = Raw(9, 4)
    for T in (1, 5, 9):
        a, b = (
            sample(model, 'prism-loop', T, 30, loop_steps=0, score=kind, eta=.4, on=.2, trace=True),
            sample(model, 'prism', T, 30, eta=.4, on=.2, trace=True),
        )
        assert torch.equal(a.trace.x, b.trace.x)
        assert torch.equal(a.trace.remasked, b.trace.remasked)
        assert torch.equal(a.n_forward, b.n_forward)

@given(hs.integers(1, 200), hs.sampled_from([1, 2]), hs.one_of(hs.none(), hs.integers(0, 60)))
def test_a_loop_pays_for_itself(budget, cost, loop_steps):
    loop, steps = looping(loop_steps, cost)
    if loop_steps is not None and cost * loop_steps >= budget:
        with pytest.raises(ValueError, match='leave no step'): steps(None, budget, None)
        return
    T = steps(None, budget, None)
    n = loop(T)
    assert n < T and T - n + cost * n in (budget, budget - (loop_steps is None and cost == 2))
    if loop_steps is None: assert n == budget // 4 if cost == 1 else abs(n - budget / 4) < 1

def test_more_than_there_are_never_reaches_the_prompt():
    model, M = Raw(6, 4), 4
    prompt = torch.tensor([[1, 2, M, 3, 1, M]])
    out = sample(model, 'prism-loop', 9, 40, prompt=prompt, loop_steps=6, n_remask_loop=6, trace=True)
    assert (out.tokens[:, [0, 1, 3, 4]] == torch.tensor([1, 2, 3, 1])).all()
    assert (out.trace.remasked[3:].sum(2) == 2).all()
    st = replace(state(out.tokens[:1], M, 0, 1), fixed=prompt != M)
    naive = st.uniform('order').masked_fill(~st.committed, -torch.inf).topk(6).indices
    # naive: topk reaches for -inf, the prompt
    assert (prompt != M)[0, naive[0]].any()

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'prism-loop', dict(loop_steps=-1), 'loop_steps=-1'),
        (ValueError, 'prism-loop', dict(n_remask_loop=1.5), 'n_remask_loop=1.5'),
        (KeyError, 'prism-loop', dict(score='haed'), "did you mean 'head'"),
        (ValueError, 'prism-loop', dict(on=0.6, off=0.5), 'on=0.6'),
        (ValueError, 'prism-loop', dict(eta=2.), 'eta=2'),
    ],
)
def test_bad_input_is_named_when_the_policy_is_built(error, name, hyper, text):
    with pytest.raises(error) as e: policy(name, **hyper)
    assert text in str(e.value)
