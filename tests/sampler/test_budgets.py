"""What a run is charged, and how many steps a budget pays for."""
from dataclasses import replace

import pytest
import torch

from navira.sampler.budgets import charged, n_steps
from navira.core import TopK
from navira.prism import binomial
from navira.sampler.registry import policy
from navira.sampling import sample
from navira.sampler.scores import confidence
from toys import small_lm

N = torch.tensor([24])
CASES = {
    'eta': policy('navira-det-changed', eta=.1),
    'from the start': policy('navira-changed', eta=.2, on=0.),
    'a number': policy('navira-det-changed', n_remask=3, on=.25),
    'a draw': policy('navira-det-changed', n_remask=lambda st: binomial(.2)(st).clamp(max=3)),
    'ranked': replace(policy('navira-det-changed', eta=.1, on=0.),
                      unmask=TopK(confidence, policy('navira').unmask.k))}

@pytest.mark.parametrize('name', CASES)
def test_what_is_charged_is_what_runs_on_average(name):
    model = small_lm(1, model_length=24)
    out = sample(model, CASES[name], 16, 300, progress=False)
    ran = out.n_forward.mean()
    # a row that remasks nothing runs one pass of two, as is usual
    assert float(ran) == pytest.approx(out.charged, rel=.015)
    assert out.charged <= 16 and out.n_steps == n_steps(CASES[name], 16, N)
    assert charged(CASES[name], out.n_steps + 1, N) > 16

def test_blocks_that_run_in_full_and_rules_without_counts_are_charged_whole():
    rule = policy('navira-det-changed', eta=.1, on=0.)
    for dear in (replace(rule, depth=1), replace(rule, remask=lambda st, p, ok: ok)):
        assert charged(dear, 10, N) == 20 and n_steps(dear, 16, N) == 8
    assert charged(replace(rule, depth=None), 10, N) == 20

@pytest.mark.parametrize('hyper', [{}, dict(eta=.5, on=0.), dict(n_remask=2), dict(on=.1, off=.9)],
                         ids=str)
def test_a_plan_of_a_long_run_draws_nothing(hyper, monkeypatch):
    "It once took minutes: 1,024 steps, simulated at each step of a bisection"
    monkeypatch.setattr('navira.base.noise.philox', None)
    many = torch.tensor([1024])
    T = n_steps(policy('navira-changed', **hyper), 1024, many)
    assert 512 <= T < 1024
