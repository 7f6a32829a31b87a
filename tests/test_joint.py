"""A joint that is known exactly: what one token a step, a prompt, and several tokens a step must
give."""
import torch

from navira.joint import JointDenoiser
from helpers.core import N, dist_of, drawn, joint3  # noqa: F401
from toys import ACCEPT, REJECT, chi2, counted, planted

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

def test_two_tokens_of_one_step_are_independent():
    model = JointDenoiser(torch.tensor([[.4, .1], [.15, .35]]))
    a, b = model.joint.sum(1), model.joint.sum(0)
    product = {(i, j): (a[i] * b[j]).item() for i in range(2) for j in range(2)}
    for name, budget in (('backbone', 1), ('mdlm', 1), ('navira', 2)):
        got = counted(drawn(model, name, budget, top_p=1.).tokens)
        assert chi2(got, product) > ACCEPT and chi2(got, dist_of(model)) < REJECT
