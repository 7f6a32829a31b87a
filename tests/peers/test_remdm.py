"""The ReMDM kernel family: rates by hand (the page prints those of cap, rescale and switch), and
rates that are refused."""
import math

import pytest

from navira.peers.remdm import kernel
from navira.sampler.registry import policy
from navira.sampling import sample
from toys import Tiny

def looped(i, T): # T = 64 with the defaults: 29 steps up to .9, 32 there, 3 from there
    return .9 * i / 29 if i <= 29 else .9 if i <= 61 else 1 - .1 * (64 - i) / 3

def flow_times(A, nominal): # the authors' adaptive steps, as in samplers.md
    t = [1.]
    while t[-1] > 1 / nominal + 1e-9:
        a = 1 + A * (t[-1] * (1 - t[-1])) ** .25
        longest = math.inf if t[-1] == 1 else 1 / (a / t[-1] + (a - 1) / (1 - t[-1]))
        t.append(t[-1] - min(1 / nominal, longest))
    return t + [0.]

def flow(i, T):
    runs = [flow_times(10., k / 8) for k in range(8, 8 * T + 1)]
    last = [t for t in runs if len(t) <= T + 1][-1]
    return 1 - (last + [0.] * T)[i]

@pytest.mark.parametrize('name, grid, sigma, steps', [
    ('forward-backward', lambda i, T: i / T, lambda i, a, b: (b - a) / a,
     [(i, 8) for i in (1, 4, 6, 7)]),
    ('remdm-loop', looped, lambda i, a, b: .055 * (29 <= i < 61),
     [(i, 64) for i in (1, 28, 29, 45, 60, 61, 62)]),
    ('dfm', flow, lambda i, a, b: 10 * (a * (1 - a)) ** .25 * (b - a) / a,
     [(1, 39), (20, 39), (30, 39), (3, 8)])])
def test_rates_are_the_papers(name, grid, sigma, steps):
    for i, T in steps:
        a, b = grid(i, T), grid(i + 1, T)
        s = min(sigma(i, a, b), 1, (1 - b) / a)
        rho = (b - (1 - s) * a) / (1 - a)
        assert policy(name).step.plan.at(i, T) == pytest.approx((s, rho), abs=1e-9)

@pytest.mark.parametrize('sigma, i', [(.2, 8), (-.1, 0), (math.nan, 0)])
def test_an_illegal_sigma_is_found_before_any_pass(sigma, i):
    model = Tiny(5, 3)
    with pytest.raises(ValueError, match=rf'at step {i} of 10'): sample(model, kernel(sigma), 10, 2)
    assert not model.rows
