"""The ReMDM kernel family: rates by hand, legal grids, runs with a prompt, psi as a mixture."""
import math

import pytest
from hypothesis import given, strategies as hs

from navira.peers.remdm import kernel, psi
from navira.sampler.registry import policy
from navira.sampling import sample
from toys import Tiny


# ---- Rates

def linear(i, T): return i / T
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

def by_hand(name, i, T, eta=None):
    "sigma and rho by the papers' formulas, free of our code"
    grid = {'remdm-loop': looped, 'dfm': flow}.get(name, linear)
    a, b = grid(i, T), grid(i + 1, T)
    top = min(1, (1 - b) / a)
    sigma = {
        'remdm-cap': lambda: min(eta, top), 'remdm-rescale': lambda: eta * top,
        'forward-backward': lambda: min((b - a) / a, top),
        'remdm-switch': lambda: min(eta, top) if 2 * (T - i) <= T else 0.,
        'remdm-loop': lambda: eta if 29 <= i < 61 else 0.,
        'dfm': lambda: min(10 * (a * (1 - a)) ** .25 * (b - a) / a, top)}[name]()
    return sigma, (b - (1 - sigma) * a) / (1 - a)

@pytest.mark.parametrize('name, etas, steps', [
    ('remdm-cap', (.04, .3, 1.), ((1, 4), (5, 8), (7, 8), (60, 64))),
    ('remdm-rescale', (.015, .5, 1.), ((1, 4), (5, 8), (7, 8))),
    ('remdm-switch', (.3,), ((2, 8), (3, 8), (4, 8), (5, 8))),
    ('forward-backward', (None,), ((1, 8), (4, 8), (6, 8), (7, 8))),
    ('remdm-loop', (.02, .1), tuple((i, 64) for i in (1, 28, 29, 45, 60, 61, 62))),
    ('dfm', (None,), ((1, 39), (20, 39), (30, 39), (3, 8)))])
def test_rates_are_the_papers(name, etas, steps):
    for eta in etas:
        rate = policy(name, **{} if eta is None else dict(eta=eta)).step.plan
        for i, T in steps: assert rate.at(i, T) == pytest.approx(by_hand(name, i, T, eta), abs=1e-9)


@pytest.mark.parametrize('sigma, i', [(.2, 8), (-.1, 0), (math.nan, 0)])
def test_an_illegal_sigma_is_found_before_any_pass(sigma, i):
    model = Tiny(5, 3)
    with pytest.raises(ValueError, match=rf'at step {i} of 10'): sample(model, kernel(sigma), 10, 2)
    assert not model.rows

# ---- Distributions


# ---- psi

@given(hs.floats(0, 1), hs.integers(1, 60), hs.data())
def test_psi_is_the_mixture_that_it_is_defined_as(kappa, T, data):
    "At a token and at a mask, over (0, 1, mask), with a prediction (.7, .3)"
    i = data.draw(hs.integers(0, T - 1))
    a, b = i / T, (i + 1) / T
    sigma, rho = psi(kappa, t_off=0.).step.plan.at(i, T)
    fill = (b - a) / (1 - a)
    for x0, posterior, now in (
            ([0., 1.], [0., 1., 0.], [0., 1 - sigma, sigma]),                       # token 1
            ([.7, .3], [fill * .7, fill * .3, 1 - fill], [.7 * rho, .3 * rho, 1 - rho])):
        again = [b * v for v in x0] + [1 - b]
        mixed = [kappa * p + (1 - kappa) * q for p, q in zip(posterior, again)]
        assert mixed == pytest.approx(now, abs=1e-12)
