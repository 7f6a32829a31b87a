"Chains: a sampler's step against its row."
import pytest

from navira.sampler.exact import Chain
from navira.sampler.registry import policy
from toys import ACCEPT, REJECT, random_joint

def test_a_step_of_the_sampler_against_its_row():
    chain, i, n = Chain(random_joint(3, 3)), 1, 4
    M, mdlm = chain.model.mask_id, policy('mdlm', top_p=1.)
    def p_values(rho, texts=20_000):     # from the last start only one way leads
        starts = (M, M, M), (M, 1, 0), (0, 1, 2)
        return chain.p_values(mdlm, chain.matrix(0., rho), i, n, starts, texts=texts)
    right, wrong = p_values(1 / (n - i))
    assert right > ACCEPT and wrong < REJECT and p_values(.5)[0] < REJECT
    # this matrix leaves no mask
    with pytest.raises(ValueError, match='this text has no probability'): p_values(1., 200)
