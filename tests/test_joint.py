"""A joint that is known exactly: what one token a step, a prompt, and several tokens a step must
give."""
import torch
from hypothesis import given, strategies as hs

from navira.joint import JointDenoiser
from helpers.core import N, dist_of, drawn, joint3  # noqa: F401
from toys import ACCEPT, Exact, REJECT, chi2, counted, planted, random_joint

def test_one_token_a_step_gives_the_joint(joint3):
    dist = dist_of(joint3)
    assert min(dist.values()) * N >= 5
    got = counted(drawn(joint3, 'backbone', 3, top_p=1.).tokens)
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
    # more steps than tokens: some steps open nothing
    assert chi2(counted(drawn(joint3, 'backbone', 7, top_p=1., seed=1).tokens), dist) > ACCEPT

def test_a_prompt_gives_the_conditional(joint3):
    M = joint3.mask_id
    for prompt, seed in (([M, 2, M], 0), ([1, M, M], 1)):
        dist = dist_of(joint3, lambda y: all(a in (b, M) for a, b in zip(prompt, y)))
        got = counted(drawn(joint3, 'backbone', 2, top_p=1., seed=seed,
                            prompt=torch.tensor(prompt)).tokens)
        assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
        assert set(got) <= set(dist)

@given(hs.lists(hs.integers(0, 2), min_size=4, max_size=4), hs.integers(0, 99))
def test_how_far_predictions_depend_on_tokens_is_what_sums_over_the_joint_give(x, seed):
    "At a mask: expected over its token; at a token: what masking it moves"
    model = random_joint(4, 2, seed=seed)
    exact, M = Exact(model), model.mask_id
    far = model.attending(torch.tensor([x]))[1][0]
    def moved(i, y):
        a, b = exact.given(tuple(x), i), exact.given(tuple(y), i)
        return abs(a - b).sum() / 2
    for i in range(4):
        for j in range(4):
            if i == j: continue
            at = lambda v: [*x[:j], v, *x[j + 1:]]
            p = exact.given(tuple(x), j)
            want = sum(q * moved(i, at(v)) for v, q in enumerate(p)) if x[j] == M else moved(i,
                                                                                           at(M))
            assert abs(far[i, j].item() - want) < 1e-12
    assert far.diagonal().abs().max() < 1e-12

def test_two_tokens_of_one_step_are_independent():
    model = JointDenoiser(torch.tensor([[.4, .1], [.15, .35]]))
    a, b = model.joint.sum(1), model.joint.sum(0)
    product = {(i, j): (a[i] * b[j]).item() for i in range(2) for j in range(2)}
    for name, budget in (('backbone', 1), ('mdlm', 1), ('navira', 2)):
        got = counted(drawn(model, name, budget, top_p=1.).tokens)
        assert chi2(got, product) > ACCEPT and chi2(got, dist_of(model)) < REJECT
