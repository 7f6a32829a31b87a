"""The ReMDM kernel family: rates by hand, legal grids, runs with a prompt, psi as a mixture."""
import math

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.peers.remdm import dfm_grid, kernel, loop_grid, mixture
from navira.prism import sigma_max
from navira.registry import grids, policy
from navira.sampling import sample
from helpers.peers import N
from toys import ACCEPT, REJECT, Tiny, chi2, counted, planted, random_joint

STRONG = {
    'mdlm': {}, 'forward-backward': {}, 'remdm-cap': dict(eta=.4), 'remdm-rescale': dict(eta=.5),
    'remdm-switch': dict(eta=.4, t_switch=.7), 'remdm-loop': dict(eta=.1), 'dfm': dict(A=3.),
    'psi': dict(kappa=.4, t_off=0.)}

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

@pytest.mark.parametrize('name', STRONG)
@pytest.mark.parametrize('T', [1, 2, 5, 64])
def test_every_step_keeps_the_share_of_clean_tokens(name, T):
    "(1 - sigma) alpha_t + (1 - alpha_t) rho = alpha_s; the last step fills all, in floats too"
    rate = kernel().step.plan if name == 'mdlm' else policy(name, **STRONG[name]).step.plan
    g = rate.grid
    assert g(0, T) == 0 and g(T, T) == 1
    for i in range(T):
        (s, r), a, b = rate.at(i, T), g(i, T), g(i + 1, T)
        assert a <= b and -1e-12 <= s <= 1 and 0 <= r <= 1
        assert (1 - s) * a + (1 - a) * r == pytest.approx(b, abs=1e-12)
    s, r = rate.at(T - 1, T)
    assert r == 1. and (s == 0 or g(T - 1, T) == 0)

@given(hs.floats(0, 1), hs.floats(0, 1), hs.floats(.01, .99), hs.integers(1, 80))
def test_no_setting_is_illegal(a, b, c, T):
    rules = [policy('remdm-cap', eta=a), policy('remdm-rescale', eta=a, cap=b),
             policy('remdm-switch', eta=b, rescale=a, t_switch=c)]
    if a != b:
        top = min(1., (1 - c) / c)
        rules.append(policy('remdm-loop', eta=top, t_on=max(a, b), t_off=min(a, b), alpha_on=c))
        g = loop_grid(max(a, b), min(a, b), c)
        assert g(0, T) == 0 and g(T, T) == 1
        assert all(g(i, T) <= g(i + 1, T) + 1e-15 for i in range(T))
    for rule in rules: assert rule.step.steps(rule, T, None) == T

@given(hs.floats(0, 40), hs.integers(1, 90))
def test_dfm_fits_its_budget_without_a_cap(A, n):
    g = dfm_grid(A)
    assert g(0, n) == 0 and g(n, n) == 1
    for i in range(n):
        a, b = g(i, n), g(i + 1, n)
        assert a <= b
        if 0 < a and b < 1: assert A * (a * (1 - a)) ** .25 * (b - a) / a <= sigma_max(a, b) + 1e-9

@pytest.mark.parametrize('sigma, i', [(.2, 8), (-.1, 0), (math.nan, 0)])
def test_an_illegal_sigma_is_found_before_any_pass(sigma, i):
    model = Tiny(5, 3)
    with pytest.raises(ValueError, match=rf'at step {i} of 10'): sample(model, kernel(sigma), 10, 2)
    assert not model.rows

# ---- Distributions

def moves(v, M, s, r, p):
    "{next symbol: probability} of a position that holds v"
    return {M: s, v: 1 - s} if v != M else {M: 1 - r, **{u: r * p[u].item() for u in range(M)}}

@pytest.mark.parametrize('name, hyper', [
    ('remdm-loop', dict(eta=.1, t_on=.7, t_off=.3)), ('forward-backward', {}),
    ('mdlm', dict(schedule='cosine'))])
def test_a_whole_run_with_a_prompt_has_the_distribution_of_its_matrix(name, hyper):
    "L = 3, one position given: the chain over the other two, by hand from alpha's only"
    model, T = random_joint(3, 2, seed=5), 6
    M, x0 = model.mask_id, (2, 1, 2)
    rule = kernel(grid=grids['cosine']) if name == 'mdlm' else policy(name, **hyper)
    rate = rule.step.plan
    expected = {x0: 1.}
    for i in range(T):
        a, b = rate.grid(i, T), rate.grid(i + 1, T)
        s, new = rate.sigma(a, b), {}
        r = 1. if a == 1 else (b - (1 - s) * a) / (1 - a)
        for x, w in expected.items():
            p = model.table[model.state(torch.tensor([x]))[0]]
            first, third = moves(x[0], M, s, r, p[0]), moves(x[2], M, s, r, p[2])
            for u, q in first.items():
                for v, z in third.items(): new[u, 1, v] = new.get((u, 1, v), 0) + w * q * z
        expected = {x: w for x, w in new.items() if w > 1e-15}
    rule = policy(name, top_p=1., **hyper)
    got = counted(sample(model, rule, T, N, batch_size=N, prompt=torch.tensor(x0)).tokens)
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT

# ---- psi

@given(hs.floats(0, 1), hs.integers(1, 60), hs.data())
def test_psi_is_the_mixture_that_it_is_defined_as(kappa, T, data):
    "At a token and at a mask, over (0, 1, mask), with a prediction (.7, .3)"
    i = data.draw(hs.integers(0, T - 1))
    a, b = i / T, (i + 1) / T
    sigma, rho = kernel(mixture(kappa)).step.plan.at(i, T)
    fill = (b - a) / (1 - a)
    for x0, posterior, now in (
            ([0., 1.], [0., 1., 0.], [0., 1 - sigma, sigma]),                       # token 1
            ([.7, .3], [fill * .7, fill * .3, 1 - fill], [.7 * rho, .3 * rho, 1 - rho])):
        again = [b * v for v in x0] + [1 - b]
        mixed = [kappa * p + (1 - kappa) * q for p, q in zip(posterior, again)]
        assert mixed == pytest.approx(now, abs=1e-12)
