"""What a run is charged, and how many steps a budget pays for."""
from dataclasses import replace

import pytest
import torch

from navira.sampler.budgets import charged, n_steps
from navira.core import TopK
from navira.sampler.registry import policy
from navira.sampling import sample
from navira.sampler.scores import confidence
from toys import small_lm

N = torch.tensor([24])
CASES = {
    'eta': policy('navira-det-changed', eta=.1),
    'from the start': policy('navira-changed', eta=.2, on=0.),
    'a number': policy('navira-det-changed', n_remask=3, on=.25),
    'ranked': replace(policy('navira-det-changed', eta=.1, on=0.),
                      unmask=TopK(confidence, policy('navira').unmask.k))}

@pytest.mark.parametrize('name', CASES)
def test_what_is_charged_is_what_runs_on_average(name):
    model = small_lm(1, model_length=24)
    out = sample(model, CASES[name], 16, 300, progress=False)
    # a row that remasks nothing runs one pass of two, as is usual
    assert float(out.n_forward.mean()) == pytest.approx(out.charged, rel=.015)
    assert out.charged <= 16 < charged(CASES[name], out.n_steps + 1, N)

def test_what_cannot_be_foreseen_is_charged_whole():
    "Blocks that run in full, rules without counts, and a schedule of one's own"
    rule = policy('navira-det-changed', eta=.1, on=0.)
    for dear in (replace(rule, depth=1), replace(rule, remask=lambda st, p, ok: ok),
                 policy('navira-det-changed', n_remask=lambda st: 1, on=0.)):
        assert charged(dear, 10, N) == 20 and n_steps(dear, 16, N) == 8
    assert charged(replace(rule, depth=None), 10, N) == 20

@pytest.mark.parametrize('hyper', [{}, dict(eta=.5, on=0.), dict(n_remask=2), dict(on=.1, off=.9)],
                         ids=str)
def test_a_plan_of_a_long_run_is_quick(hyper, monkeypatch):
    "It once took minutes: 1,024 steps, simulated at each step of a bisection"
    monkeypatch.setattr('navira.base.noise.philox', None)
    assert 512 <= n_steps(policy('navira-changed', **hyper), 1024, torch.tensor([1024])) < 1024
