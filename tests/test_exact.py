"""Exact distributions: the test is scipy's, probabilities add up, what was enumerated two ways
is the same."""

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.exact import Chain, Distribution
from navira.registry import policy
from toys import ACCEPT, REJECT, random_joint

seeds, shares = hs.integers(0, 2**32 - 1), hs.floats(0, 1)
# at most 64 states
small = hs.builds(random_joint, hs.integers(1, 3), hs.integers(2, 3), seed=seeds)

def dist_of(model): return Distribution.of(model.joint.flatten(), model.outcomes)


def close(a, b, eps=1e-12): return torch.allclose(a, b, rtol=0, atol=eps)

# ---- The chi-square test


# ---- Distributions


@given(small, shares, shares, hs.integers(0, 4))
def test_a_chain_of_steps_is_a_power_of_its_matrix(model, sigma, rho, n):
    chain = Chain(model)
    K = chain.matrix(sigma, rho)
    start = (model.mask_id,) * model.length
    dist = Distribution.after(n, lambda x, i: chain.row(K, x), start)
    assert sum(dist.values()) == pytest.approx(1)
    expected = chain.noised(0.) @ torch.linalg.matrix_power(K, n)
    got = torch.tensor([dist.get(tuple(x), 0.) for x in chain.states.tolist()], dtype=torch.float64)
    assert close(got, expected)

ORDERS = {
    'at random': lambda q, d, i: {(j,): 1 / len(q) for j in q},
    'from the right': lambda q, d, i: {(max(q),): 1.},
    'the surest position first': lambda q, d, i: {(max(q, key=lambda j: max(q[j])),): 1.},
}

@pytest.mark.parametrize('order', ORDERS)
@given(small)
def test_one_site_a_step_is_the_joint(order, model):
    assert dist_of(model).distance(Distribution.unmasking(model, ORDERS[order])) < 1e-12


# ---- Chains


@given(small, hs.data())
def test_redrawing_one_site_keeps_the_joint(model, data):
    chain = Chain(model)
    j = data.draw(hs.integers(0, model.length - 1))
    pi = chain.noised(1.)
    assert close(pi @ chain.redraw([j]), pi)
    # all at once: from any state as from masks
    afresh = chain.noised(0.) @ chain.matrix(0., 1.)
    assert close(chain.redraw(range(model.length)), afresh.expand(len(afresh), -1))

def test_a_step_of_the_sampler_against_its_row():
    chain, i, n = Chain(random_joint(3, 3)), 1, 4
    M, mdlm = chain.model.mask_id, policy('mdlm', top_p=1.)
    # from the last one only one way leads
    starts = (M, M, M), (M, 1, 0), (0, 1, 2)
    right, wrong = chain.p_values(mdlm, chain.matrix(0., 1 / (n - i)), i, n, starts, texts=20_000)
    assert right > ACCEPT and wrong < REJECT
    assert chain.p_values(mdlm, chain.matrix(0., .5), i, n, starts, texts=20_000)[0] < REJECT
    # this matrix leaves no mask
    with pytest.raises(ValueError, match='this text has no probability'):
        chain.p_values(mdlm, chain.matrix(0., 1.), i, n, starts, texts=200)

# ---- The sampler's side
