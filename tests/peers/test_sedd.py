"""D3PM and SEDD: their rates, and a network whose scores do not add up."""
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.diffusion import Forward
from navira.peers.sedd import noises, Reverse
from navira.registry import policy
from navira.sampling import sample
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
