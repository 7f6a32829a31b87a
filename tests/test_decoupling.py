"""The second pass: what it knows, what it may fill, and what it costs."""
from dataclasses import replace

import pytest
import torch

import navira
from navira.core import TopK, step
from navira.decoupling import refill_first
from navira.prism import low_quality
from navira.registry import policy
from navira.sampling import sample
from helpers.core import CORRECTING, COUPLED, DECOUPLED, N, dist_of, joint3, state  # noqa: F401
from toys import ACCEPT, REJECT, chi2, counted, small_lm

def test_one_gibbs_step_leaves_the_joint_alone(joint3):
    "tau to infinity, K = 1, refilled at once; with K = 2 the joint moves"
    x0 = joint3.outcomes[torch.multinomial(joint3.joint.flatten(), N, True,
                                           generator=torch.Generator().manual_seed(0))]
    def after(k):
        st = state(x0, joint3.mask_id, 0, 1000, seed=2)
        rule = replace(
            navira.policy('navira', top_p=1.0), remask=TopK(low_quality, k, 1e12),
            unmask=TopK(refill_first, k)
        )
        for _ in range(3): st = step(rule, st, joint3)
        return counted(st.x)
    assert chi2(after(1), dist_of(joint3)) > ACCEPT and chi2(after(2), dist_of(joint3)) < REJECT

@pytest.mark.parametrize(
    'names', [('prism', 'navira-det'), ('prism-stochastic', 'navira'),
              ('backbone', 'navira-piecewise')]
)
@pytest.mark.parametrize('off', [dict(n_remask=0), dict(eta=0.), dict(on=1.)])
def test_without_remasks_one_pass_and_two_agree(names, off):
    model, T = small_lm(4), 6
    kw = {n: {} if n == 'backbone' else off for n in names}
    one, two = sample(model, names[0], T, 4, 3, **kw[names[0]]), sample(model, names[1], 2 * T, 4,
                                                                        3, **kw[names[1]])
    assert torch.equal(one.tokens, two.tokens) and torch.equal(one.n_forward, two.n_forward)
    assert one.n_steps == two.n_steps == T


def test_the_second_pass_does_not_know_what_was_masked():
    "Two states that differ at positions 0 and 2 only, which the step remasks"
    model, M = small_lm(5), 10
    first = lambda st, p, where: torch.tensor([9., 0, 9] + [0] * 9).expand(st.x.shape)
    for name in CORRECTING:
        rule = replace(policy(name, n_remask=2, on=0., top_p=1.), remask=TopK(first, 2))
        starts = [[a, 4, b, 4, 9] + [M] * 7 for a, b in ((1, 2), (7, 5))]
        one, two = (step(rule, state(x, M, 5, 12, 200), model) for x in starts)
        assert (one.committed.sum(1) == 6).all()
        assert torch.equal(one.x, two.x) == (name in DECOUPLED)
