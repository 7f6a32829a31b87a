"""The ReMDM kernel family and first-hitting: rates by hand, reductions, ragged batches, and every trap's naive form."""
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as hs
from scipy import stats

from navira.base.noise import Noise
from navira.core import Flip, State, step
from navira.peers.remdm import as_kappa, dfm_grid, dfm_times, kernel, loop_grid, mixture, psi, tempered
from navira.prism import sigma_max
from navira.registry import grids, policy
from navira.sampling import sample
from helpers.peers import Fixed, N, state
from toys import ACCEPT, REJECT, Tiny, chi2, counted, planted, random_joint

KERNELS = ['mdlm', 'remdm-cap', 'remdm-rescale', 'remdm-switch', 'remdm-loop', 'forward-backward', 'dfm', 'psi']
ALL = KERNELS + ['remdm-conf', 'first-hitting']
STRONG = {
    'remdm-cap': dict(eta=.4),
    'remdm-rescale': dict(eta=.5),
    'remdm-switch': dict(eta=.4, t_switch=.7),
    'remdm-loop': dict(eta=.1), 'dfm': dict(A=3.), 'psi': dict(kappa=.4, t_off=0.),
}

def strong(name, **kw): return policy(name, **STRONG.get(name, {}), **kw)

# ---- Rates

def linear(i, T): return i / T
def cosine(i, T): return 1 - math.cos(math.pi * i / (2 * T))
def looped(i, T): # T = 64 with the defaults: 29 steps up to .9, 32 there, 3 from there
    return .9 * i / 29 if i <= 29 else .9 if i <= 61 else 1 - .1 * (64 - i) / 3
def flow_times(A, nominal): # the authors' adaptive steps, as in samplers.md
    t = [1.]
    while t[-1] > 1 / nominal + 1e-9:
        a = 1 + A * (t[-1] * (1 - t[-1])) ** .25
        t.append(t[-1] - (1 / nominal if t[-1] == 1 else min(1 / nominal, 1 / (a / t[-1] + (a - 1) / (1 - t[-1])))))
    return t + [0.]
def flow(i, T):
    runs = [t for k in range(8, 8 * T + 1) for t in [flow_times(10., k / 8)] if len(t) <= T + 1]
    return 1 - (runs[-1] + [0.] * T)[i]

def rates_of(name, i, T, eta=None):
    "sigma and rho by the papers' formulas, once more and by hand, free of our code"
    grid = dict(loop=looped, dfm=flow, cosine=cosine).get(name, linear)
    a, b = grid(i, T), grid(i + 1, T)
    top = min(1, (1 - b) / a) if i else 1
    sigma = dict(
        cap=lambda: min(eta, top), rescale=lambda: eta * top,
        fb=lambda: min((b - a) / a, top) if i else 1.,
        switch=lambda: min(eta, top) if 2 * (T - i) <= T else 0.,
        loop=lambda: eta if 29 <= i < 61 else 0.,
        dfm=lambda: min(10 * (a * (1 - a)) ** .25 * (b - a) / a, top) if i else 0.,
        cosine=lambda: 0.,
    )[name]()
    return sigma, (b - (1 - sigma) * a) / (1 - a)

CASES = (
    [('cap', 'remdm-cap', eta, i, T) for eta in (.04, .3, 1.) for i, T in ((1, 4), (5, 8), (7, 8), (60, 64))]
    + [('rescale', 'remdm-rescale', eta, i, T) for eta in (.015, .5, 1.) for i, T in ((1, 4), (5, 8), (7, 8))]
    + [('switch', 'remdm-switch', .3, i, 8) for i in (2, 3, 4, 5)]
    + [('fb', 'forward-backward', None, i, T) for i, T in ((1, 8), (4, 8), (6, 8), (7, 8))]
    + [('loop', 'remdm-loop', eta, i, 64) for eta in (.02, .1) for i in (1, 28, 29, 45, 60, 61, 62)]
    + [('dfm', 'dfm', None, i, T) for i, T in ((1, 39), (20, 39), (30, 39), (3, 8))]
    + [('cosine', 'mdlm', None, i, T) for i, T in ((1, 8), (6, 8), (60, 64))]
)

def halved(expected):
    "The same with its rarest outcome half as likely"
    k = min(expected, key=expected.get)
    return {v: q / 2 if v == k else q * (1 - expected[k] / 2) / (1 - expected[k]) for v, q in expected.items()}

@pytest.mark.parametrize('rule,name,eta,i,T', CASES)
def test_rates_are_the_closed_forms(rule, name, eta, i, T):
    "P(m | clean) = sigma, P(v | m) = rho p(v): 60,000 committed and 60,000 masked positions take one step"
    s, rho = rates_of(rule, i, T, eta)
    hyper = ({} if eta is None else dict(eta=eta)) | (dict(schedule='cosine') if rule == 'cosine' else {})
    p = policy(name, top_p=1., **hyper)
    if hasattr(p.steps, 'at'): assert p.steps.at(i, T) == pytest.approx((s, rho), abs=1e-9)
    x = torch.tensor([1] * 100 + [2] * 100)
    after = step(p, state(x, 2, i, T, 600), Fixed(200)).x
    clean, masked = after[:, :100].flatten(), after[:, 100:].flatten()
    assert not (clean == 0).any()                                     # carry-over: what is kept is never redrawn
    for seen, expected in ((clean, {1: 1 - s, 2: s}), (masked, {0: .7 * rho, 1: .3 * rho, 2: 1 - rho})):
        counts = {v: int((seen == v).sum()) for v in (0, 1, 2)}
        expected = {v: q for v, q in expected.items() if q > 1e-13}
        assert not any(c for v, c in counts.items() if v not in expected)
        if len(expected) > 1: assert chi2(counts, expected) > ACCEPT and chi2(counts, halved(expected)) < REJECT

@pytest.mark.parametrize('name', KERNELS)
@pytest.mark.parametrize('T', [1, 2, 3, 5, 16, 64, 200])
def test_every_step_keeps_the_share_of_clean_tokens(name, T):
    "(1 - sigma) alpha_t + (1 - alpha_t) rho = alpha_s, with legal rates"
    rate = kernel().steps if name == 'mdlm' else strong(name).steps
    g = rate.grid
    assert g(0, T) == 0 and g(T, T) == 1 and all(g(i, T) <= g(i + 1, T) for i in range(T))
    for i in range(T):
        (s, r), a, b = rate.at(i, T), g(i, T), g(i + 1, T)
        assert -1e-12 <= s <= 1 and 0 <= r <= 1
        assert (1 - s) * a + (1 - a) * r == pytest.approx(b, abs=1e-12)
    s, r = rate.at(T - 1, T)
    # the last step fills all, in floats too, and remasks nothing
    assert r == 1.
    assert s == 0 or g(T - 1, T) == 0

@given(hs.floats(0, 1), hs.integers(1, 80), hs.floats(0, 1), hs.floats(.01, 1))
def test_no_setting_of_cap_and_rescale_is_illegal(eta, T, cap, t_switch):
    for p in (
        policy('remdm-cap', eta=eta),
        policy('remdm-rescale', eta=eta, cap=cap),
        policy('remdm-switch', eta=cap, rescale=eta, t_switch=t_switch),
    ):
        p.steps(p, T, None)

@given(hs.floats(0, 1), hs.floats(0, 1), hs.floats(.01, .99), hs.integers(1, 80))
def test_no_loop_is_illegal(a, b, alpha_on, T):
    if a == b: return
    p = policy('remdm-loop', eta=min(1., (1 - alpha_on) / alpha_on), t_on=max(a, b), t_off=min(a, b), alpha_on=alpha_on)
    assert p.steps(p, T, None) == T
    g = loop_grid(max(a, b), min(a, b), alpha_on)
    assert g(0, T) == 0 and g(T, T) == 1 and all(g(i, T) <= g(i + 1, T) + 1e-15 for i in range(T))

@given(hs.floats(0, 40), hs.integers(1, 90))
def test_dfm_fits_its_budget_without_a_cap(A, n):
    g = dfm_grid(A)
    assert g(0, n) == 0 and g(n, n) == 1
    for i in range(n):
        a, b = g(i, n), g(i + 1, n)
        assert a <= b
        # the authors' step keeps it legal
        if 0 < a and b < 1:
            assert A * (a * (1 - a)) ** .25 * (b - a) / a <= sigma_max(a, b) + 1e-9

def test_dfm_has_the_public_codes_steps():
    public = {16: 39, 32: 47, 64: 73, 128: 134, 256: 260, 512: 515, 1024: 1026}
    assert {T: len(dfm_times(10., T, 9999)) - 1 for T in public} == public

def test_loop_phases_count_like_integers():
    for T in range(3, 300):
        for on, off in ((.55, .05), (.5, .25), (.9, .1)):
            g = loop_grid(on, off, .9)
            a = [g(i, T) for i in range(T + 1)]
            before = len([i for i in range(T) if 100 * (T - i) > round(100 * on) * T]) or 1
            after = len([i for i in range(T) if 100 * (T - i) <= round(100 * off) * T]) or 1
            if before + after <= T:
                counts = sum(x < y <= .9 for x, y in zip(a, a[1:])), sum(y > .9 for y in a)
                assert counts == (before, after), (T, on, off)

# ---- Distributions

def moves(v, M, s, r, p):
    "{next symbol: probability} of a position that holds v"
    return {M: s, v: 1 - s} if v != M else {M: 1 - r, **{u: r * p[u].item() for u in range(M)}}

@pytest.mark.parametrize(
    'name,hyper',
    [
        ('remdm-cap', dict(eta=.5)),
        ('remdm-loop', dict(eta=.1, t_on=.7, t_off=.3)),
        ('forward-backward', {}), ('dfm', {}),
        ('mdlm', dict(schedule='cosine')),
        ('remdm-switch', dict(eta=.6, rescale=.8)),
    ],
)
def test_a_whole_run_with_a_prompt_has_the_law_of_its_matrix(name, hyper):
    "L = 3, one position given: the chain over the other two, by hand from alpha's alone"
    model, T = random_joint(3, 2, seed=5), 6
    M, x0 = model.mask_id, (2, 1, 2)
    rate = kernel(grid=grids['cosine']).steps if name == 'mdlm' else policy(name, **hyper).steps
    grid, sigma = rate.grid, rate.sigma
    expected = {x0: 1.}
    for i in range(T):
        a, b = grid(i, T), grid(i + 1, T)
        s, new = sigma(a, b), {}
        r = 1. if a == 1 else (b - (1 - s) * a) / (1 - a)
        for x, w in expected.items():
            p = model.table[model.state(torch.tensor([x]))[0]]
            options = [{v: 1.} if j == 1 else moves(v, M, s, r, p[j]) for j, v in enumerate(x)]
            for u in options[0]:
                for v in options[2]: new[u, 1, v] = new.get((u, 1, v), 0) + w * options[0][u] * options[2][v]
        expected = {x: w for x, w in new.items() if w > 1e-15}
    got = counted(sample(model, policy(name, top_p=1., **hyper), T, N, batch_size=N, prompt=torch.tensor(x0)).tokens)
    assert not any(M in x for x in got)
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT

class Chain:
    "The (V+1)^L transition matrix of one step, and the distribution after some of them from all masks"
    def __init__(self, model):
        self.M, L = model.mask_id, model.length
        self.states = torch.cartesian_prod(*[torch.arange(self.M + 1)] * L)
        eye = torch.eye(self.M + 1, dtype=torch.float64)
        self.still, self.gone, self.table = eye[self.states], eye[self.M], model.table
        self.joint = torch.zeros(len(self.states), dtype=torch.float64)
        self.joint[(self.states != self.M).all(1)] = model.joint.flatten()

    def step(self, s, r):
        masked, clean = r * self.table + (1 - r) * self.gone, (1 - s) * self.still + s * self.gone
        site = torch.where(self.states[..., None] == self.M, masked, clean)
        return torch.einsum('sa,sb,sc->sabc', *site.unbind(1)).flatten(1)

    def tv(self, rate, T):
        q = torch.zeros(len(self.states), dtype=torch.float64); q[-1] = 1
        for i in range(T): q = q @ self.step(*rate.at(i, T))
        return (q - self.joint).abs().sum().item() / 2

@pytest.mark.parametrize(
    'name,hyper,low,high',
    [
        ('remdm-cap', lambda T: dict(eta=1 / T), 1.95, 2.05),
        ('remdm-rescale', lambda T: dict(eta=1 / T), 1.95, 2.05),
        ('remdm-switch', lambda T: dict(eta=1 / T), 1.95, 2.05),
        ('remdm-loop', lambda T: dict(eta=1 / T, t_on=.75, t_off=.25), 1.95, 2.05),
        ('forward-backward', lambda T: {}, 1.95, 2.05),
        ('remdm-cap', lambda T: dict(eta=.3), 1.38, 1.5),
        ('remdm-rescale', lambda T: dict(eta=.3), 1.38, 1.5),
        ('remdm-switch', lambda T: dict(eta=.3), 1.38, 1.5),
        ('remdm-loop', lambda T: dict(eta=.1, t_on=.75, t_off=.25), .99, 1.02),
    ],
)
def test_total_variation_from_256_to_512_steps(name, hyper, low, high):
    "Halves with eta = c/T; a fixed eta: falls as 1/sqrt(T) where sigma_max closes at the end, else not at all"
    chain = Chain(random_joint(3, 2, seed=2))
    a, b = (chain.tv(policy(name, **hyper(T)).steps, T) for T in (256, 512))
    assert low < a / b < high and b > 1e-5

def test_remasked_and_flipped_have_noise_of_their_own():
    "With a second pass a remasked position is filled at once with rho; with shared noise it always would be"
    p, i, T = policy('remdm-cap', eta=.4, top_p=1.), 3, 8
    s, r = p.steps.at(i, T)
    st = state(torch.ones(200, dtype=torch.long), 2, i, T, 500)
    kept = []
    step(replace(p, decoupled=True), st, Fixed(200), lambda *a: kept.append(a[3:]))
    cleaned, after = kept[0]
    gone = cleaned.masked
    n, back = int(gone.sum()), int((gone & ~after.masked).sum())
    assert stats.binomtest(n, gone.numel(), s).pvalue > ACCEPT and stats.binomtest(back, n, r).pvalue > ACCEPT
    shared = replace(p, decoupled=True, remask=Flip(lambda st: s, 'flip'))
    step(shared, st, Fixed(200), lambda *a: kept.append(a[3:]))
    cleaned, after = kept[1]
    assert not (cleaned.masked & after.masked).any()                  # the naive form
    step(p, st, Fixed(200), lambda *a: kept.append(a[3:]))
    assert kept[2][1].masked.eq(kept[2][0].masked).all()              # coupled: clean -> mask stays a mask

def test_one_step_fills_everything_from_the_product_of_marginals():
    model = random_joint(2, 3, seed=3)
    a, b = model.joint.sum(1), model.joint.sum(0)
    product = {(i, j): (a[i] * b[j]).item() for i in range(3) for j in range(3)}
    for name in KERNELS + ['remdm-conf']:
        got = counted(sample(model, strong(name, top_p=1.), 1, N, batch_size=N).tokens)
        assert chi2(got, product) > ACCEPT and chi2(got, planted(product)) < REJECT

# ---- Runs

@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize('T', [1, 2, 3, 5, 64])
def test_no_mask_is_left_and_the_prompt_stands(name, T):
    model, M = Tiny(9, 4), 4
    prompt = torch.full((4, 9), M); prompt[1, :4] = 2; prompt[2, 1:] = 1; prompt[3, ::2] = 0
    out = sample(model, strong(name), T, 4, seed=T, prompt=prompt, trace=True)
    assert not (out.tokens == M).any()
    assert (out.trace.x[:, prompt != M] == prompt[prompt != M]).all()
    assert name == 'first-hitting' or ((out.n_forward <= T).all() and out.n_steps == T)
    assert not out.trace.remasked[-1].any()
    assert (out.n_forward >= 1).all()

@pytest.mark.parametrize('name', ALL)
def test_rows_are_what_they_are_alone(name):
    model, M = Tiny(12, 4), 4
    prompt = torch.full((3, 12), M); prompt[1, :6] = 1; prompt[2, 1:] = 2
    out = sample(model, strong(name), 10, 3, seed=7, prompt=prompt, trace=True)
    for b in range(3):
        one = sample(model, strong(name), 10, range(b, b + 1), seed=7, prompt=prompt[b], trace=True)
        T = one.n_steps                                               # first-hitting: shorter rows are done earlier
        assert torch.equal(one.tokens[0], out.tokens[b]) and one.n_forward[0] == out.n_forward[b]
        assert torch.equal(one.trace.x[:, 0], out.trace.x[:T + 1, b])
        assert torch.equal(one.trace.remasked[:, 0], out.trace.remasked[:T, b])

@pytest.mark.parametrize('name', KERNELS + ['remdm-conf'])
def test_a_pass_is_made_where_something_is_filled_and_only_there(name):
    model = Tiny(6, 3)
    out = sample(model, strong(name), 40, 20, seed=3, trace=True, batch_size=7)
    assert torch.equal(out.n_forward, out.trace.unmasked.any(2).sum(0)) and out.n_forward.sum() == sum(model.rows)
    assert (out.n_forward < 40).any()

def test_the_cached_form_of_mdlm_gives_the_tokens_of_the_plain_one():
    "A reference loop with a pass at every step, and the same noise"
    model, M, T, n = Tiny(10, 4), 4, 25, 6
    x, noise = torch.full((n, 10), M), Noise(5, torch.arange(n))
    draw = policy('mdlm').draw
    for i in range(T):
        p, where = model(x), (noise.uniform(i, 'flip', 10) < 1 / (T - i)) & (x == M)
        if where.any(): x = x.masked_scatter(where, draw(p.logits(where), noise.uniform(i, 'token', 10)[where])[0])
    out = sample(model, 'mdlm', T, n, 5)
    assert torch.equal(out.tokens, x) and (out.n_forward < T).all()

@pytest.mark.parametrize('schedule', grids)
def test_mean_passes_of_mdlm(schedule):
    N, T, n = 20, 30, 2000
    out = sample(Fixed(N), 'mdlm', T, n, batch_size=n, schedule=schedule)
    w = [grids[schedule](i + 1, T) - grids[schedule](i, T) for i in range(T)]
    mean = sum(1 - (1 - v) ** N for v in w)
    if schedule == 'linear': assert mean == pytest.approx(T * (1 - (1 - 1 / T) ** N))
    f = out.n_forward.double()
    assert abs(f.mean() - mean) < 4 * f.std() / n ** .5
    assert abs(f.mean() - (1 + mean)) > 10 * f.std() / n ** .5        # the public code's count, one clean-up pass more

def test_alpha_of_a_step_is_where_the_last_one_ended():
    "A grid shifted by one would pass many tests but not this: the share of clean tokens after each step"
    for name in ('remdm-cap', 'remdm-loop', 'dfm', 'forward-backward'):
        out, g = sample(Fixed(100), strong(name), 16, 200, batch_size=200, trace=True), strong(name).steps.grid
        for i in range(17):
            a = g(i, 16)
            assert abs((out.trace.x[i] != 2).double().mean() - a) <= 5 * (a * (1 - a) / 20_000) ** .5

# ---- Reductions, token for token

def tokens(rule, T=12, n=20, **kw): return sample(Tiny(9, 4), rule, T, n, 2, **kw).tokens

def test_reductions():
    mdlm = tokens('mdlm')
    off = {'remdm-cap': dict(eta=0.), 'remdm-rescale': dict(eta=0.), 'remdm-conf': dict(eta=0.), 'dfm': dict(A=0.),
           'remdm-switch': dict(t_switch=1e-9)}
    named = [policy(name, **hyper) for name, hyper in off.items()]
    for rule in (kernel(), kernel(0.), policy('remdm-rescale', cap=0.), *named):
        assert torch.equal(tokens(rule), mdlm)
    assert torch.equal(tokens(kernel(grid=grids['cosine'])), tokens('mdlm', schedule='cosine'))
    assert not torch.equal(tokens(kernel(grid=grids['cosine'])), mdlm)
    assert torch.equal(tokens('remdm-switch', t_switch=1., eta=.3), tokens('remdm-cap', eta=.3))
    assert torch.equal(tokens('remdm-switch', t_switch=1., eta=1., rescale=.3), tokens('remdm-rescale', eta=.3))
    assert torch.equal(tokens('remdm-conf', t_switch=1.), tokens('remdm-conf'))
    assert not torch.equal(tokens('remdm-conf', t_switch=.3), tokens('remdm-conf'))
    assert torch.equal(tokens(kernel(lambda a, b: min(.3, sigma_max(a, b)))), tokens('remdm-cap', eta=.3))
    assert torch.equal(tokens('remdm-cap', eta=1.), tokens('remdm-rescale', eta=1.))

def test_switch_is_inclusive_and_counts_before_the_step():
    for T in (10, 20, 64, 100):
        for k in range(1, T):
            t = k / T                                                 # 1 - .7 is above .3 in floats
            sigma = policy('remdm-switch', t_switch=t, eta=.01).steps
            assert [sigma.at(i, T)[0] > 0 for i in range(T - 1)] == [T - i <= k for i in range(T - 1)]

# ---- Bad input

@pytest.mark.parametrize(
    'name,hyper,words',
    [
        ('remdm-cap', dict(eta=1.01), ['eta=1.01', '[0, 1]']),
        ('remdm-cap', dict(eta=-0.1), ['eta=-0.1']),
        ('remdm-cap', dict(eta=math.nan), ['eta=nan']),
        ('remdm-cap', dict(top_p=0.), ['top_p=0.']),
        ('remdm-rescale', dict(eta=2), ['eta=2', '[0, 1]']),
        ('remdm-rescale', dict(cap=-1), ['cap=-1']),
        ('remdm-switch', dict(t_switch=1.2), ['t_switch=1.2', '(0, 1]']),
        ('remdm-switch', dict(rescale=3.), ['rescale=3.']),
        ('remdm-switch', dict(eta=3.), ['eta=3.']),
        ('remdm-loop', dict(t_on=0.05, t_off=0.55), ['t_on=0.05', 't_off=0.55', 't_off < t_on']),
        ('remdm-loop', dict(t_on=0.3, t_off=0.3), ['t_on=0.3']),
        ('remdm-loop', dict(t_on=1.1), ['t_on=1.1']),
        ('remdm-loop', dict(t_off=-0.1), ['t_off=-0.1']),
        ('remdm-loop', dict(alpha_on=1.), ['alpha_on=1.']),
        ('remdm-loop', dict(alpha_on=0.), ['alpha_on=0.']),
        ('remdm-loop', dict(eta=0.12), ['eta=0.12', '0.111', '(1 - alpha_on) / alpha_on']),
        ('remdm-loop', dict(eta=-0.01), ['eta=-0.01']),
        ('dfm', dict(A=-1), ['A=-1']),
        ('dfm', dict(A=math.inf), ['A=inf']),
        ('dfm', dict(A=math.nan), ['A=nan']),
    ],
)
def test_bad_hyper_parameters_are_refused_when_the_policy_is_built(name, hyper, words):
    with pytest.raises(ValueError) as e: policy(name, **hyper)
    assert all(w in str(e.value) for w in words), str(e.value)

@pytest.mark.parametrize(
    'sigma,step_',
    [
        (lambda a, b: .2, 8), (lambda a, b: -.1, 0),
        (lambda a, b: (b - a) / a if a else 1., 9),
        (lambda a, b: math.nan, 0),
    ],
)
def test_an_illegal_sigma_is_found_before_any_pass(sigma, step_):
    model = Tiny(5, 3)
    with pytest.raises(ValueError, match=rf'at step {step_} of 10'): sample(model, kernel(sigma), 10, 2)
    assert not model.rows

def test_the_forward_backward_formula_as_it_stands_leaves_masks():
    "Its last step: rho is 2, and clean tokens are remasked with probability 1 / (T - 1)"
    T, L = 16, 60
    def sigma(st): return 1 / st.i if st.i else 1.                     # (alpha_s - alpha_t) / alpha_t
    def rho(st): return min(1., ((st.i + 1) / T - (1 - sigma(st)) * st.i / T) / (1 - st.i / T))
    rule = replace(kernel(), remask=Flip(sigma, 'remask'), unmask=Flip(rho), steps=lambda policy, budget, free: budget)
    model, st = Fixed(L), State.start(torch.full((300, L), 2), 2, T, Noise(0, torch.arange(300)))
    for _ in range(T): st = step(rule, st, model)
    left = st.masked.double().sum(1)
    with pytest.raises(ValueError, match='Flip left .* masks in finished texts'):
        sample(model, rule, T, 300, batch_size=300)
    assert abs(left.mean() - L / T) < 4 * left.std() / 300 ** .5
    assert not (sample(Fixed(L), 'forward-backward', T, 300, batch_size=300).tokens == 2).any()

# ---- psi

@given(hs.floats(0, 1), hs.integers(1, 60), hs.data())
def test_psi_is_the_mixture_that_it_is_defined_as(kappa, T, data):
    "At a token and at a mask, from the public code's two distributions over (0, 1, mask) with a prediction (.7, .3)"
    i = data.draw(hs.integers(0, T - 1))
    a, b = i / T, (i + 1) / T
    sigma, rho = kernel(mixture(kappa)).steps.at(i, T)
    for x0, posterior, now in (
        ([0., 1.], [0., 1., 0.], [0., 1 - sigma, sigma]),                          # token 1 stands
        ([.7, .3], [(b - a) / (1 - a) * .7, (b - a) / (1 - a) * .3, (1 - b) / (1 - a)], [.7 * rho, .3 * rho, 1 - rho]),
    ):
        again = [b * v for v in x0] + [1 - b]
        mixed = [kappa * p + (1 - kappa) * q for p, q in zip(posterior, again)]
        assert mixed == pytest.approx(now, abs=1e-12)

@given(hs.floats(0, 1), hs.floats(0, 1), hs.integers(1, 60))
def test_as_kappa_is_the_way_back_up_to_what_a_share_can_remask(eta, cap, T):
    sigma = tempered(eta, cap)
    back = mixture(as_kappa(sigma))
    for i in range(T):
        a, b = i / T, (i + 1) / T
        assert back(a, b) == pytest.approx(min(sigma(a, b), 1 - b), abs=1e-12)

@given(hs.floats(0, 1), hs.floats(0, 1), hs.floats(0, 1), hs.integers(1, 40))
def test_psi_corrects_in_its_window_alone(u, v, kappa, T):
    t_off, t_on = sorted((u, v))
    at = psi(kappa, t_on, t_off).steps.at
    for i in range(T):
        t = 1 - i / T
        if abs(t - t_on) < 1e-9 or abs(t - t_off) < 1e-9: continue
        assert at(i, T)[0] == pytest.approx((1 - kappa) * (1 - (i + 1) / T) if t_off < t < t_on else 0., abs=1e-12)

def test_psi_refuses_what_is_no_share_before_a_pass():
    for hyper, text in ((dict(kappa=1.5), 'kappa=1.5'), (dict(kappa=math.nan), 'kappa=nan'),
                        (dict(t_on=.2, t_off=.3), 't_off=0.3'), (dict(t_on=1.2), 't_on=1.2')):
        with pytest.raises(ValueError, match=text): policy('psi', **hyper)
    model = Tiny(6, 3)
    with pytest.raises(ValueError, match='kappa=2.0'): sample(model, 'psi', 4, 1, kappa=lambda a_t, a_s: 2.)
    assert not model.rows
