"Chains: what leaves a joint alone, and a sampler's step against its row."
import pytest
import torch
from hypothesis import given, strategies as hs

from navira.sampler.exact import Chain
from navira.sampler.registry import policy
from toys import ACCEPT, REJECT, random_joint

# at most 64 states
small = hs.builds(random_joint, hs.integers(1, 3), hs.integers(2, 3), seed=hs.integers(0, 9999))


def close(a, b, eps=1e-12): return torch.allclose(a, b, rtol=0, atol=eps)

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
