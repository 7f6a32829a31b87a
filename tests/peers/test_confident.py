"""ReMDM-conf: the remasked tokens depend on the probability of the token, when drawn or now."""
import math

import pytest
import torch
from scipy import stats

from navira.core import Pass, step
from navira.peers.confident import Spread, low_confidence_now
from navira.registry import policy
from navira.scores import low_confidence
from helpers.peers import Fixed, N, state
from toys import ACCEPT, REJECT, random_joint

PSI = [.9, .5, .1, .7, .3]

@pytest.mark.parametrize('i, T, kw', [(2, 8, {}), (6, 8, {}), (5, 8, dict(eta=.5, cap=.2))])
def test_conf_spreads_sigma_by_the_closed_softmax(i, T, kw):
    sigma = kw.get('eta', 1.) * min(kw.get('cap', 1.), 1, (T - i - 1) / i)
    # a prompt, three committed, a mask: psi of the prompt is NaN
    x, fixed, conf = [0, 1, 0, 2, 1], [True, False, False, False, False], [math.nan, *PSI[1:]]
    share = lambda among: {j: sigma * math.exp(-PSI[j]) / sum(math.exp(-PSI[k]) for k in among) for j in (1, 2, 4)}
    st = state(x, 2, i, T, N, conf=conf, fixed=fixed)
    after = step(policy('remdm-conf', top_p=1., **kw), st, Fixed(5)).x
    p = lambda j, q: stats.binomtest(int((after[:, j] == 2).sum()), N, q).pvalue
    assert (after[:, 0] == 0).all()
    assert min(p(j, q) for j, q in share((1, 2, 4)).items()) > ACCEPT
    assert min(p(j, q) for j, q in share((0, 1, 2, 4)).items()) < REJECT       # with the prompt
    assert p(3, 1 - 1 / (T - i)) > ACCEPT                                      # filled at MDLM's rate

def test_spread_of_nothing_is_nothing_and_of_one_is_all():
    ok = torch.tensor([[False] * 3, [False, True, False], [True, True, False]])
    score = torch.tensor([[.1, .2, .3], [.1, .2, .3], [math.nan, .2, .3]], dtype=torch.float64)
    rule, st = Spread(lambda *_: score, 1.), state(torch.zeros(3, 3, dtype=torch.long), 2, 1, 4)
    assert rule(st, None, ok).tolist() == [[False] * 3, [False, True, False], [False, True, False]]
    assert rule.rows(st, ok).tolist() == [False, True, True]

def test_current_confidence_is_the_models_and_not_the_stored_one():
    model = random_joint(3, 3, seed=1)
    st = state([[0, 1, 2], [0, 3, 2]], 3, 2, 4, conf=[.9, .5, .1])
    p = Pass(model, st)
    assert low_confidence(st, p, st.committed)[0].tolist() == [-.9, -.5, -.1] and not p.ran.any()
    now = low_confidence_now(st, p, st.committed)
    table = model.table[model.state(st.x)[0]]
    assert torch.allclose(now[0], -table.gather(1, st.x[0][:, None])[:, 0])
    assert now[1, 1].isnan() and p.ran.all()
