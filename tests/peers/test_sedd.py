"""D3PM and SEDD: their rates, and a network whose scores do not add up."""
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.diffusion import Forward
from navira.peers.sedd import d3pm, noises, Reverse, sedd
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import state
from navira.core import Pass
from toys import Tiny

def at(i, n): return SimpleNamespace(i=i, n=n)

@given(hs.integers(2, 300), hs.floats(0, 1), hs.sampled_from(sorted(noises)))
def test_the_analytic_step_is_mdlms_coin_on_its_own_times(n, where, noise):
    i = min(int(where * (n - 1)), n - 2)
    t, dt = 1 - i * (1 - 1e-5) / (n - 1), (1 - 1e-5) / (n - 1)
    before, after = (math.exp(-noises[noise][0](s)) for s in (t, t - dt))
    rate = Reverse('analytic', noise).rate(at(i, n))
    assert 0 < rate <= 1 + 1e-9
    assert rate == pytest.approx((after - before) / (1 - before), rel=1e-6)
    assert Reverse('analytic', noise).rate(at(n - 1, n)) == math.inf

@given(hs.integers(2, 300), hs.floats(0, 1))
def test_for_loglinear_noise_both_steps_are_one(n, where):
    i = min(int(where * (n - 1)), n - 2)
    a, b = (Reverse(k, 'loglinear').rate(at(i, n)) for k in ('analytic', 'euler'))
    assert a == pytest.approx(b, rel=1e-6)

@pytest.mark.parametrize('noise', sorted(noises))
def test_the_slope_is_that_of_the_noise(noise):
    sigma, slope = noises[noise]
    for t in (.1, .5, .9):
        assert (sigma(t + 1e-6) - sigma(t - 1e-6)) / 2e-6 == pytest.approx(slope(t), rel=1e-6)

class Scaled(Tiny):
    "Its ratios add up to Z times what they should"
    def __init__(self, *args, Z=1.): super().__init__(*args); self.Z = Z
    def __call__(self, x): return ScaledForward(super().__call__(x), self.Z)

class ScaledForward(Forward):
    def __init__(self, inner, Z): self.inner, self.Z, self.seen_masked = inner, Z, inner.seen_masked
    def logits(self, where):
        logits = self.inner.logits(where).log_softmax(-1)
        return logits + math.log(self.Z * (logits.shape[1] - 1))

@pytest.mark.parametrize('kw', [{}, dict(predictor='euler', noise='geometric')], ids=str)
def test_scores_that_add_up_give_the_coin_of_the_posterior(kw):
    model = Scaled(9, 5)
    a, b = (sample(model, policy('sedd', scores=s, **kw), 6, 50) for s in ('network', 'posterior'))
    assert torch.equal(a.tokens, b.tokens)

@pytest.mark.parametrize('Z', [.5, 1.5])
def test_a_network_whose_scores_add_up_to_more_fills_more(Z):
    model, n = Scaled(9, 5, Z=Z), 4000
    st = state([5] * 9, 5, 2, 6, n)
    rule = sedd(scores='network').unmask
    share = rule(st, Pass(model, st), st.masked).double().mean().item()
    assert abs(share - Z * rule.rate(st)) < 4 * (.25 / (9 * n)) ** .5

def test_d3pm_writes_what_mdlm_writes():
    model = Tiny(9, 5)
    for T in (1, 4, 20):
        a, b = sample(model, d3pm(), T, 20), sample(model, 'mdlm', T, 20, top_p=1.)
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward)
