"""ReMDM-conf: who is remasked goes by the probability of the token, then or now."""
import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from navira.core import Pass, step
from navira.scores import low_confidence
from navira.peers.confident import Spread, confidences, low_confidence_now
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import Fixed, N, state
from toys import ACCEPT, REJECT, random_joint

PSI = [.9, .5, .1, .7, .3]

@pytest.mark.parametrize(
    'i,T,kw', [(2, 8, {}), (6, 8, {}), (5, 8, dict(eta=.5)), (5, 8, dict(cap=.2)), (5, 8, dict(eta=.5, cap=.2))]
)
def test_conf_spreads_sigma_by_the_closed_softmax(i, T, kw):
    sigma = kw.get('eta', 1.) * min(kw.get('cap', 1.), 1, (T - i - 1) / i)
    # a prompt, three committed, a mask: psi of the prompt is NaN
    x, fixed = [0, 1, 0, 2, 1], [True, False, False, False, False]
    conf = [math.nan, *PSI[1:]]
    w = {j: math.exp(-PSI[j]) for j in (1, 2, 4)}
    expected = {j: sigma * v / sum(w.values()) for j, v in w.items()}
    assert sum(expected.values()) == pytest.approx(sigma)
    after = step(policy('remdm-conf', top_p=1., **kw), state(x, 2, i, T, N, conf=conf, fixed=fixed), Fixed(5)).x
    assert (after[:, 0] == 0).all()
    for j, q in expected.items(): assert stats.binomtest(int((after[:, j] == 2).sum()), N, q).pvalue > ACCEPT
    # softmax over what is not a mask
    naive = {j: sigma * math.exp(-PSI[j]) / sum(math.exp(-PSI[k]) for k in (0, 1, 2, 4)) for j in expected}
    assert min(stats.binomtest(int((after[:, j] == 2).sum()), N, q).pvalue for j, q in naive.items()) < REJECT
    # masks are filled at MDLM's rate
    assert stats.binomtest(int((after[:, 3] != 2).sum()), N, 1 / (T - i)).pvalue > ACCEPT
    if sigma > .3:
        rho = min(1., ((i + 1) / T - (1 - sigma) * i / T) / (1 - i / T) - 1e-9)
        assert stats.binomtest(int((after[:, 3] != 2).sum()), N, rho).pvalue < REJECT

def test_spread_of_nothing_is_nothing_and_of_one_is_all():
    ok = torch.tensor([[False] * 3, [False, True, False], [True, True, False]])
    score = torch.tensor([[.1, .2, .3], [.1, .2, .3], [math.nan, .2, .3]], dtype=torch.float64)
    rule = Spread(lambda *_: score, 1.)
    st = state(torch.zeros(3, 3, dtype=torch.long), 2, 1, 4)
    assert rule(st, None, ok).tolist() == [[False] * 3, [False, True, False], [False, True, False]]
    assert rule.rows(st, ok).tolist() == [False, True, True] and not replace(rule, total=0.).rows(st, ok).any()
    # the naive softmax
    assert torch.isnan(score.masked_fill(~ok, -math.inf).softmax(1)[0]).all()

def test_current_confidence_is_the_models_and_not_the_stored_one():
    model = random_joint(3, 3, seed=1)
    st = state([[0, 1, 2], [0, 3, 2]], 3, 2, 4, conf=[.9, .5, .1])
    p = Pass(model, st)
    assert low_confidence(st, p, st.committed)[0].tolist() == [-.9, -.5, -.1] and not p.ran.any()      # from memory
    now = low_confidence_now(st, p, st.committed)
    assert torch.allclose(now[0], -model.table[model.state(st.x)[0]].gather(1, st.x[0][:, None])[:, 0])
    assert now[1, 1].isnan() and p.ran.all()

def test_current_confidence_costs_no_second_pass():
    model = random_joint(3, 3, seed=1)
    out = sample(model, 'remdm-conf', 12, 50, confidence='current', trace=True)
    assert (out.n_forward <= 12).all() and out.trace.remasked.any() and not (out.tokens == 3).any()

def test_a_wrong_confidence_names_the_nearest():
    with pytest.raises(KeyError, match="did you mean 'current'"): policy('remdm-conf', confidence='curent')
    assert list(confidences) == ['commit', 'current']

@pytest.mark.parametrize(
    'name,hyper,words',
    [
        ('remdm-conf', dict(eta=1.5), ['eta=1.5']),
        ('remdm-conf', dict(cap=math.inf), ['cap=inf']),
        ('remdm-conf', dict(t_switch=0), ['t_switch=0', '(0, 1]']),
    ],
)
def test_bad_hyper_parameters_are_refused_when_the_policy_is_built(name, hyper, words):
    with pytest.raises(ValueError) as e: policy(name, **hyper)
    assert all(w in str(e.value) for w in words), str(e.value)
