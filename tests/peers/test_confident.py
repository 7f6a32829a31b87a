"""ReMDM-conf: the remasked tokens depend on the probability of the token, when drawn or now."""
import math

import pytest
from scipy import stats

from navira.core import step
from navira.sampler.registry import policy
from helpers.peers import N, state
from toys import ACCEPT, REJECT, random_joint

PSI = [.9, .5, .1, .7, .3]

@pytest.mark.parametrize('i, T, kw', [(2, 8, {}), (6, 8, {}), (5, 8, dict(eta=.5, cap=.2))])
def test_conf_spreads_sigma_by_the_closed_softmax(i, T, kw):
    sigma = kw.get('eta', 1.) * min(kw.get('cap', 1.), 1, (T - i - 1) / i)
    # a prompt, three committed, a mask: psi of the prompt is NaN
    x, fixed, conf = [0, 1, 0, 2, 1], [True, False, False, False, False], [math.nan, *PSI[1:]]
    def share(among):
        total = sum(math.exp(-PSI[k]) for k in among)
        return {j: sigma * math.exp(-PSI[j]) / total for j in (1, 2, 4)}
    st = state(x, 2, i, T, N, conf=conf, fixed=fixed)
    after = step(policy('remdm-conf', top_p=1., **kw), st, random_joint(5, 2)).x
    p = lambda j, q: stats.binomtest(int((after[:, j] == 2).sum()), N, q).pvalue
    assert (after[:, 0] == 0).all()
    assert min(p(j, q) for j, q in share((1, 2, 4)).items()) > ACCEPT
    assert min(p(j, q) for j, q in share((0, 1, 2, 4)).items()) < REJECT       # with the prompt
    assert p(3, 1 - 1 / (T - i)) > ACCEPT                  # filled at MDLM's rate
