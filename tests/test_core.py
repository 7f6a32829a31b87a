"""Samplers: their distributions on joints known exactly, parity with the paper's algorithms written a second time, and
what every run keeps."""
import hashlib, itertools, math, re, threading, time
from collections import Counter
from dataclasses import replace
import numpy as np, pytest, torch
from hypothesis import given, strategies as hs
from scipy import stats
import navira
from navira import schedules
from navira.decoupling import refill_first
from navira.joint import JointDenoiser
from navira.base.noise import Noise, philox
from navira.diffusion import categorical, drawer, n_committed, nucleus
from navira.base.parallel import parallel_map
from navira.core import Pass, State, TopK, step
from navira.prism import binomial, low_quality, prism, prism_guard, window
from navira.remasking import low_probability, pi, plackett_luce
from navira.registry import policies, policy
from navira.sampling import sample, start_ids
from toys import (ACCEPT, REJECT, Exact, Tiny, chi2, counted, pick, planted, random_joint, sequential, small_lm,
                  transcribed, truncate)

N = 50_000
NAMES = [
    'backbone',
    'mdlm',
    'prism',
    'prism-stochastic',
    'navira-det',
    'navira',
    'navira-quadratic',
    'navira-sigmoid',
    'navira-piecewise',
]
COUPLED, DECOUPLED = ['prism', 'prism-stochastic'], [n for n in NAMES if n.startswith('navira')]
CORRECTING = COUPLED + DECOUPLED

def drawn(model, name, budget, n=N, seed=0, **kw): return sample(model, name, budget, n, seed, batch_size=n, **kw)

def state(x, mask_id, i, T, n=None, seed=0, free=None):
    "n rows that stand at `x` [L] before step i; everything is free but what `free` leaves out"
    x = torch.as_tensor(x)
    x = x.expand(n, -1) if n else x
    fixed = torch.zeros(x.shape, dtype=torch.bool) if free is None else ~torch.as_tensor(free).expand(x.shape)
    return replace(State.start(x, mask_id, T, Noise(seed, torch.arange(len(x)))), fixed=fixed, i=i)

def test_every_policy_is_here(): assert set(NAMES) <= set(policies())

# ---- 1. Distributions on a joint known exactly

@pytest.fixture(scope='module')
def joint3(): return random_joint(3, 3, seed=1)

def dist_of(model, given=lambda y: True):
    dist = {tuple(y): p for y, p in zip(model.outcomes.tolist(), model.joint.flatten().tolist()) if given(y)}
    return {y: p / sum(dist.values()) for y, p in dist.items()}

def test_one_token_a_step_gives_the_joint(joint3):
    dist = dist_of(joint3)
    assert min(dist.values()) * N >= 5
    got = counted(drawn(joint3, 'backbone', 3, top_p=1.).tokens)
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
    # more steps than tokens: some steps open nothing
    assert chi2(counted(drawn(joint3, 'backbone', 7, top_p=1., seed=1).tokens), dist) > ACCEPT

def test_a_prompt_gives_the_conditional(joint3):
    M = joint3.mask_id
    for prompt, seed in (([M, 2, M], 0), ([1, M, M], 1)):
        dist = dist_of(joint3, lambda y: all(a in (b, M) for a, b in zip(prompt, y)))
        got = counted(drawn(joint3, 'backbone', 2, top_p=1., seed=seed, prompt=torch.tensor(prompt)).tokens)
        assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
        assert set(got) <= set(dist)

def test_two_tokens_of_one_step_are_independent():
    model = JointDenoiser(torch.tensor([[.4, .1], [.15, .35]]))
    a, b = model.joint.sum(1), model.joint.sum(0)
    product = {(i, j): (a[i] * b[j]).item() for i in range(2) for j in range(2)}
    for name, budget in (('backbone', 1), ('mdlm', 1), ('navira', 2)):
        got = counted(drawn(model, name, budget, top_p=1.).tokens)
        assert chi2(got, product) > ACCEPT and chi2(got, dist_of(model)) < REJECT

def tv(a, b): return sum(abs(a.get(k, 0) - b.get(k, 0)) for k in {*a, *b}) / 2

def test_mdlm_has_its_own_distribution_and_comes_to_the_joint(joint3):
    "Two masks flip in one step with probability 1/T, and are then independent: at T = 3 far from the joint"
    exact, x0 = Exact(joint3), [joint3.mask_id] * 3
    dist = exact.ancestral(x0, 3)
    got = counted(drawn(joint3, 'mdlm', 3, top_p=1.).tokens)
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT and chi2(got, dist_of(joint3)) < REJECT
    far = [tv(exact.ancestral(x0, T), dist_of(joint3)) for T in (3, 30, 300)]
    assert far[0] > 10 * far[2] and far[2] < 1e-3 and far[1] / far[2] == pytest.approx(10, rel=.1)     # of order 1/T

def test_mdlm_with_a_prompt_and_more_steps_than_tokens():
    model = random_joint(3, 3, seed=2)
    x0 = [model.mask_id, 1, model.mask_id]
    dist = Exact(model).ancestral(x0, 20)
    assert tv(dist, Exact(model).chain(x0, 2)) < .02                            # nearly one token at a time
    got = counted(drawn(model, 'mdlm', 20, top_p=1., prompt=torch.tensor(x0)).tokens)
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT

CHAIN = dict(T=3, eta=.6, on=.3)
TAU = {'prism': lambda u: 0., 'navira-det': lambda u: 0., 'prism-stochastic': lambda u: .7, 'navira': lambda u: .7,
       'navira-quadratic': lambda u: .3 + 1.7 * max(0, (u - .25) / .75) ** 2}
HYPER = {
    'prism': {},
    'navira-det': {},
    'prism-stochastic': dict(tau=0.7),
    'navira': dict(tau=0.7),
    'navira-quadratic': dict(tau_min=0.3, tau_max=2.0, h=0.25),
}

@pytest.fixture(scope='module')
def joint5(): return random_joint(5, 2, seed=3, floor=.02)

@pytest.fixture(scope='module')
def dists5(joint5):
    "Distribution of a whole run, from all masks, by enumeration of Algorithms 1 and 2 with PRISM's binomial K"
    exact, x0 = Exact(joint5), [joint5.mask_id] * 5
    return {n: exact.chain(x0, coupled=n in COUPLED, tau=TAU[n], **CHAIN) for n in TAU}

@pytest.mark.parametrize('name', TAU)
def test_a_whole_run_has_the_distribution_of_the_paper(name, joint5, dists5):
    hyper = dict(top_p=1., eta=CHAIN['eta'], on=CHAIN['on']) | HYPER[name]
    got = counted(drawn(joint5, name, CHAIN['T'] * (1 if name in COUPLED else 2), **hyper).tokens)
    assert chi2(got, dists5[name]) > ACCEPT and chi2(got, planted(dists5[name])) < REJECT
    other = {
        'prism': 'navira-det',
        'navira-det': 'navira',
        'prism-stochastic': 'navira',
        'navira': 'navira-det',
        'navira-quadratic': 'navira-det',
    }[name]
    assert chi2(got, dists5[other]) < ACCEPT / 10

def test_a_whole_run_with_nucleus_and_prompt():
    model = random_joint(4, 3, seed=6, floor=.3)
    M, hyper = model.mask_id, dict(eta=.7, on=0.)
    dist = {P: Exact(model, P).chain([M, 1, M, M], 3, tau=lambda u: 1., **hyper) for P in (.8, 1.)}
    got = counted(drawn(model, 'navira', 6, top_p=.8, tau=1., prompt=torch.tensor([M, 1, M, M]), **hyper).tokens)
    assert chi2(got, dist[.8]) > ACCEPT and chi2(got, planted(dist[.8])) < REJECT and chi2(got, dist[1.]) < REJECT

@pytest.fixture(scope='module')
def joint6(): return random_joint(6, 2, seed=4, floor=.03)

STEPS = {
    'prism': (0.0, {}),
    'prism-stochastic': (0.8, dict(tau=0.8)),
    'navira-det': (0.0, {}),
    'navira': (0.8, dict(tau=0.8)),
}

@pytest.mark.parametrize('name', STEPS)
def test_one_step_with_two_remasks(name, joint6):
    "From (0, 1, 0, m, m, m), K = 2: sets by quality (Plackett-Luce at a temperature), uniform order, the right pass"
    M = joint6.mask_id
    x, (tau, hyper) = (0, 1, 0, M, M, M), STEPS[name]
    dists = {c: Exact(joint6).step(x, range(6), 3, 6, {2: 1.}, c, tau) for c in (True, False)}
    after = step(policy(name, n_remask=2, on=0., top_p=1., **hyper), state(x, M, 3, 6, N), joint6)
    got, mine = counted(after.x), name in COUPLED
    assert chi2(got, dists[mine]) > ACCEPT
    for wrong in (
        dists[not mine],
        planted(dists[mine]),
        Exact(joint6).step(x, range(6), 3, 6, {2: 1.0}, mine, 1e9),
        Exact(joint6).step(x, range(6), 3, 6, {1: 1.0}, mine, tau),
    ):
        assert chi2(got, wrong) < REJECT

def test_a_coupled_step_draws_from_what_it_saw_and_never_reopens(joint6):
    M = joint6.mask_id
    x = (0, 1, 0, M, M, M)
    seen = []
    step(prism(n_remask=2, on=0., top_p=1.), state(x, M, 3, 6, 500), joint6, lambda *s: seen.append(s))
    _, before, _, cleaned, after = seen[0]
    gone = before.committed & cleaned.masked
    assert (gone.sum(1) == 2).all() and (after.masked & gone).eq(gone).all()

def test_one_gibbs_step_leaves_the_joint_alone(joint3):
    "tau to infinity, K = 1, refilled at once; with K = 2 the joint moves"
    x0 = joint3.outcomes[torch.multinomial(joint3.joint.flatten(), N, True, generator=torch.Generator().manual_seed(0))]
    def after(k):
        st = state(x0, joint3.mask_id, 0, 1000, seed=2)
        rule = replace(
            navira.policy('navira', top_p=1.0), remask=TopK(low_quality, k, 1e12), unmask=TopK(refill_first, k)
        )
        for _ in range(3): st = step(rule, st, joint3)
        return counted(st.x)
    assert chi2(after(1), dist_of(joint3)) > ACCEPT and chi2(after(2), dist_of(joint3)) < REJECT

# ---- 2. Parity with the algorithms written a second time

FORMS = {
    'prism': (dict(), lambda u: 0.0),
    'prism-stochastic': (dict(tau=0.6), lambda u: 0.6),
    'navira-det': (dict(), lambda u: 0.0),
    'navira': (dict(tau=0.6), lambda u: 0.6),
    'navira-quadratic': (
        dict(tau_min=0.1, tau_max=0.9, h=0.4),
        lambda u: 0.1 if u <= 0.4 else 0.1 + 0.8 * ((u - 0.4) / 0.6) ** 2,
    ),
    'navira-sigmoid': (
        dict(tau_min=0.1, tau_max=0.9, k=9.0, c=0.6),
        lambda u: 0.1 + 0.8 / (1 + math.exp(-9 * (u - 0.6))),
    ),
    'navira-piecewise': (
        dict(tau_min=0.1, tau_mid=0.3, tau_max=0.9, p1=0.3, p2=0.7),
        lambda u: (
            0.1 if u <= 0.3 else 0.1 + 0.2 * (u - 0.3) / 0.4 if u <= 0.7 else 0.3 + 0.6 * ((u - 0.7) / 0.3) ** 1.5
        ),
    ),
}

def same_as_transcribed(model, name, T, n, length, seed, prompt=None, P=.9, **hyper):
    "Number of remasks of a run that is the same both ways"
    schedule, tau = FORMS[name]
    out = sample(
        model,
        name,
        T * (1 if name in COUPLED else 2),
        n,
        seed,
        length=length,
        prompt=prompt,
        trace=True,
        top_p=P,
        **schedule,
        **hyper,
    )
    with torch.inference_mode():
        want, taken = transcribed(
            model, start_ids(model, n, length, prompt), T, seed, name in COUPLED, tau, P=P, **hyper
        )
    assert torch.equal(out.tokens, want) and out.trace.remasked.sum(2).flatten().tolist() == taken
    return sum(taken)

@pytest.mark.parametrize('name', FORMS)
def test_parity_on_a_small_network(name):
    "Lazy logits and idle rows change nothing: tokens and numbers of remasks are those of the plain loops, in float32"
    def check(M, model_of):
        prompt = torch.tensor([[1, M, M, M, 3, M, M, M, M, M, 2, M], [M] * 12, [M, 5, 5, M, M, M, M, M, 2, M, M, M]])
        cases = (
            (12, None, dict(eta=0.3, on=0.0)),
            (7, prompt, dict(eta=0.9, on=0.25, off=0.9)),
            (5, None, dict(eta=0.5, P=1.0)),
            (16, prompt, dict(eta=0.2)),
        )
        return sum(
            same_as_transcribed(model_of(s), name, T, 3, 12, s, pr, **hyper) for s, (T, pr, hyper) in enumerate(cases)
        )
    assert check(10, small_lm) > 10
    assert check(0, lambda seed: small_lm(seed + 10, mask_id=0)) > 10       # the mask need not be the last id

@pytest.fixture(scope='module')
def embedded(): return navira.load()

@pytest.mark.parametrize('name', FORMS)
def test_parity_on_the_embedded_model(name, embedded):
    assert same_as_transcribed(embedded, name, 8, 2, 24, 5, eta=.3, on=.25) > 0

# ---- 3. A sample depends on (seed, its number) only

@pytest.mark.parametrize('name', NAMES)
def test_a_sample_does_not_depend_on_its_batch(name):
    model = small_lm(3).double()
    M, budget = model.mask_id, 6 * policy(name).passes
    hyper = dict(eta=.4, on=.2) if name in CORRECTING else {}
    prompt = torch.full((8, 12), M)
    prompt[1, :3] = torch.tensor([1, 2, 3]); prompt[4, 5:] = 4; prompt[7, ::2] = 7
    for pr in (None, prompt):
        a, b, c = (sample(model, name, budget, 8, 11, prompt=pr, batch_size=k, **hyper) for k in (1, 3, 8))
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.tokens, c.tokens)
        assert torch.equal(a.n_forward, b.n_forward) and torch.equal(a.n_forward, c.n_forward)
    tail = sample(model, name, budget, 3, 11, first=5, prompt=prompt[5:], batch_size=2, **hyper)
    assert torch.equal(tail.tokens, a.tokens[5:])
    other = sample(model, name, budget, 8, 12, prompt=prompt, **hyper)
    assert not torch.equal(c.tokens, other.tokens) and len({*map(tuple, c.tokens.tolist())}) > 1

# ---- 4. What decoupling is

@pytest.mark.parametrize(
    'names', [('prism', 'navira-det'), ('prism-stochastic', 'navira'), ('backbone', 'navira-piecewise')]
)
@pytest.mark.parametrize('off', [dict(n_remask=0), dict(eta=0.), dict(on=1.)])
def test_without_remasks_one_pass_and_two_agree(names, off):
    model, T = small_lm(4), 6
    kw = {n: {} if n == 'backbone' else off for n in names}
    one, two = sample(model, names[0], T, 4, 3, **kw[names[0]]), sample(model, names[1], 2 * T, 4, 3, **kw[names[1]])
    assert torch.equal(one.tokens, two.tokens) and torch.equal(one.n_forward, two.n_forward)
    assert one.n_steps == two.n_steps == T

def twins(model, name, seed=0):
    "Predictions at the masks of two states that differ only at positions 0 and 2, which the step remasks"
    M = model.mask_id
    first = lambda st, p, where: torch.tensor([9., 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0]).expand(st.x.shape)
    rule = replace(policy(name, n_remask=2, on=0., top_p=1.), remask=TopK(first, 2))
    out = []
    for a, b in ((1, 2), (7, 5)):
        st = state([[a, 4, b, 4, 9, M, M, M, M, M, M, M]], M, 5, 12, seed=seed)
        seen = []
        after = step(rule, st, model, lambda *s: seen.append(s))
        _, _, p, cleaned, _ = seen[0]
        assert cleaned.x[0, 0] == cleaned.x[0, 2] == M and cleaned.masked.sum() == 9
        q = Pass(model, cleaned) if rule.decoupled else p
        out.append((q.logits(st.masked), after.x))
    return out

def test_the_second_pass_does_not_know_what_was_masked():
    model = small_lm(5)
    for name in DECOUPLED:
        (a, x), (b, y) = twins(model, name)
        assert torch.equal(a, b) and torch.equal(x, y)
    for name in COUPLED:
        (a, x), (b, y) = twins(model, name)
        ok = a.isfinite()
        assert (a[ok] - b[ok]).abs().max() > 1e-2
        # and so it draws other tokens
        assert any(not torch.equal(*(y for _, y in twins(model, name, seed))) for seed in range(30))

def test_two_pass_steps_may_refill_at_once_and_one_pass_steps_never():
    for name in CORRECTING:
        t = sample(Tiny(10, 4), name, 8 * policy(name).passes, 40, trace=True, eta=.8, on=0.).trace
        assert t.remasked.any() and (t.remasked & t.revealed).any().item() == (name in DECOUPLED)

# ---- 5. What every run keeps

@hs.composite
def runs(draw):
    name, L, n = draw(hs.sampled_from(NAMES)), draw(hs.integers(1, 14)), draw(hs.integers(1, 4))
    passes = 2 if name in DECOUPLED else 1
    budget = draw(
        hs.one_of(hs.just(passes), hs.integers(passes, 2 * L + 5), hs.sampled_from([passes * L, passes * L + 1, 40]))
    )
    on = draw(hs.sampled_from([0., .3, .5, 1.]))
    hyper = dict(top_p=draw(hs.sampled_from([.3, .9, 1.])))
    if name in CORRECTING:
        hyper |= dict(
            eta=draw(hs.sampled_from([0.0, 0.05, 0.5, 1.0])),
            on=on,
            off=draw(hs.sampled_from([on, 1.0])),
            n_remask=draw(hs.sampled_from([None, None, 1, 3, 99])),
        )
    given = draw(
        hs.lists(hs.lists(hs.booleans(), min_size=L, max_size=L).filter(lambda r: not all(r)), min_size=n, max_size=n)
    )
    V = draw(hs.integers(1, 5))
    return dict(
        name=name,
        L=L,
        n=n,
        budget=budget,
        hyper=hyper,
        given=torch.tensor(given),
        V=V,
        mask_id=draw(hs.sampled_from([V, 0])),
        batch_size=draw(hs.integers(1, n + 1)),
        seed=draw(hs.integers(-2**63, 2**63 - 1)),
    )

@given(runs())
def test_counts_budget_prompt_and_trace(r):
    model = Tiny(r['L'], r['V'], r['mask_id'])
    M, tokens = r['mask_id'], [v for v in range(r['V'] + 1) if v != r['mask_id']]
    prompt = torch.where(r['given'], torch.tensor(tokens)[torch.arange(r['L']) % len(tokens)], M)
    out = sample(
        model,
        r['name'],
        r['budget'],
        r['n'],
        r['seed'],
        prompt=prompt,
        batch_size=r['batch_size'],
        trace=True,
        **r['hyper'],
    )
    T, t, fixed = r['budget'] // (2 if r['name'] in DECOUPLED else 1), out.trace, r['given']
    assert out.n_steps == t.T == T and len(t.x) == T + 1
    assert torch.equal(t.x[0], prompt.int()) and torch.equal(t.x[-1], out.tokens.int()) and torch.equal(t.fixed, fixed)
    assert set(out.tokens.unique().tolist()) <= set(tokens)                    # no mask is left, and none is emitted
    assert (t.x[:, fixed] == prompt[fixed]).all()
    assert (out.n_forward >= 1).all() and (out.n_forward <= r['budget']).all()
    assert out.n_forward.sum() == sum(model.rows)
    masked = t.x == M
    assert not (t.remasked & (masked[:-1] | fixed)).any()                      # only what was committed is taken back
    tilde = torch.where(t.remasked, M, t.x[:-1])
    assert not (t.revealed & (tilde != M)).any() and not (t.revealed & masked[1:]).any()
    assert torch.equal(t.x[1:][~t.revealed], tilde[~t.revealed])               # nothing changes that no flag explains
    free = (~fixed).sum(1)
    if r['name'] != 'mdlm':
        for i in range(T):
            assert torch.equal(
                (~masked[i + 1] & ~fixed).sum(1), torch.tensor([math.ceil(N * (i + 1) / T) for N in free.tolist()])
            )
    if r['name'] in ('backbone', 'mdlm'): assert not t.remasked.any() and model.rated == 0
    if r['hyper'].get('n_remask') is None: assert not t.remasked[-1].any()     # binomial: nothing at the last step
    if r['name'] in COUPLED: assert not (t.remasked & t.revealed).any()
    lo, hi = (r['hyper'].get(k, 0.) * T for k in ('on', 'off'))
    assert not t.remasked[[i for i in range(T) if not lo <= i < hi]].any()

def test_counts_with_rows_that_have_different_prompts():
    "K, n and N are the row's own: the rows of a batch are what they are alone"
    model, M = Tiny(12, 4), 4
    prompt = torch.full((3, 12), M); prompt[1, :6] = 1; prompt[2, 1:] = 2
    for name in NAMES:
        out = sample(model, name, 10, 3, prompt=prompt, **(dict(eta=.5, on=0.) if name in CORRECTING else {}))
        for b in range(3):
            assert torch.equal(
                sample(
                    model,
                    name,
                    10,
                    1,
                    first=b,
                    prompt=prompt[b],
                    **(dict(eta=0.5, on=0.0) if name in CORRECTING else {}),
                ).tokens[0],
                out.tokens[b],
            )

def test_a_continued_step_is_the_whole_run():
    "State in, state out: stopping between steps and going on changes nothing; a state handed in stays as it was"
    model, rule = Tiny(9, 4), policy('navira', eta=.6, on=0.)
    st = State.start(torch.full((5, 9), 4), 4, 6, Noise(3, torch.arange(5)))
    for _ in range(6):
        x = st.x.clone()
        after = step(rule, st, model)
        assert torch.equal(st.x, x)
        st = after
    assert torch.equal(st.x, sample(model, rule, 12, 5, 3).tokens)

# ---- 6. The draw at a temperature

S5 = torch.tensor([-1.2, .3, .9, 1.4, 2.5], dtype=torch.float64)

def by(score, k, tau=None):
    "A rule by a fixed score [L], the same in each row"
    return TopK(lambda st, p, where: score.expand(st.x.shape), k, tau)

def picked(k, tau, s=S5, n=N, eligible=None, seed=0):
    st = state(torch.zeros(len(s), dtype=torch.long), 9, 0, 10, n, seed)
    some = torch.ones(len(s), dtype=torch.bool) if eligible is None else eligible
    return by(-s, k, tau)(st, None, some.expand(n, -1))

def sets(x): return Counter(tuple(r) for r in x.nonzero()[:, 1].view(len(x), -1).tolist())

def exact_sets(s, tau, k):
    out = Counter()
    for seq, q in sequential({j: math.exp(-v / tau) for j, v in enumerate(s.tolist())}, k).items():
        out[tuple(sorted(seq))] += q
    return out

@pytest.mark.parametrize('tau', [.5, 1., 3.])
def test_two_of_five_follow_plackett_luce(tau):
    dist = exact_sets(S5, tau, 2)
    for c, q in dist.items(): assert plackett_luce(pi(S5, tau), c) == pytest.approx(q, rel=1e-9)
    got = sets(picked(2, tau))
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
    assert chi2(got, exact_sets(-S5, tau, 2)) < REJECT
    w = pi(S5, tau).tolist()
    with_replacement = {(i, j): w[i] * w[j] for i, j in dist}
    assert chi2(got, {c: q / sum(with_replacement.values()) for c, q in with_replacement.items()}) < REJECT

def test_three_of_five_over_some(): assert chi2(sets(picked(3, .8, seed=4)), exact_sets(S5, .8, 3)) > ACCEPT

def test_infinite_temperature_is_uniform():
    got = sets(picked(2, 1e9))
    assert chi2(got, {c: .1 for c in itertools.combinations(range(5), 2)}) > ACCEPT
    assert picked(2, 1e9).double().mean(0).numpy() == pytest.approx(np.full(5, 2 / 5), abs=.01)
    assert chi2(sets(picked(2, 20.)), {c: .1 for c in itertools.combinations(range(5), 2)}) < REJECT

@pytest.mark.parametrize('tau', [0., 5e-324, 1e-300, 1e-8, 1e-3])
@pytest.mark.parametrize('scale', [1e-3, 1., 50., 700.])
def test_tiny_temperatures_are_greedy(tau, scale):
    "No overflow, no NaN: the K lowest, in every row"
    if tau == 1e-3 and scale == 1e-3: pytest.skip('that is a temperature of one')
    got = picked(2, tau, S5 * scale, n=2000)
    assert torch.equal(got, torch.tensor([1, 1, 0, 0, 0]).bool().expand(2000, -1))
    assert torch.equal(got, picked(2, tau, (S5 * scale).float(), n=2000))      # a float32 score is fine

@pytest.mark.parametrize('name', ['prism', 'navira-det'])
def test_a_small_temperature_is_det_in_a_run(name):
    stochastic, kw = {'prism': 'prism-stochastic', 'navira-det': 'navira'}[name], dict(eta=.5, on=0.)
    a = sample(small_lm(6), name, 14, 6, **kw)
    for tau in (0.0, 1e-300, 1e-8):
        assert torch.equal(sample(small_lm(6), stochastic, 14, 6, tau=tau, **kw).tokens, a.tokens)
    assert not torch.equal(sample(small_lm(6), stochastic, 14, 6, tau=5., **kw).tokens, a.tokens)

def test_a_temperature_per_row():
    tau = lambda st: torch.where(torch.arange(len(st.x)) % 2 == 0, 0., 1.).double()
    st = state(torch.zeros(5, dtype=torch.long), 9, 0, 10, N)
    got = by(-S5, 2, tau)(st, None, torch.ones(N, 5, dtype=torch.bool))
    assert set(sets(got[::2])) == {(0, 1)} and chi2(sets(got[1::2]), exact_sets(S5, 1., 2)) > ACCEPT

def test_more_than_there_are_and_none_at_all():
    some = torch.tensor([0, 1, 0, 1, 0]).bool()
    for tau in (0., 1e-300, .5, 1e9):
        assert torch.equal(picked(4, tau, n=50, eligible=some), some.expand(50, -1))
        assert not picked(3, tau, n=50, eligible=some & False).any()
        assert not picked(0, tau, n=50).any()
    assert (picked(1, .5, n=500, eligible=some).sum(1) == 1).all()
    assert not picked(1, .5, n=500, eligible=some)[:, ~some].any()

def test_eligible_positions_with_an_infinite_score_still_count():
    "A certain token has quality +inf; it is the last to go, but K = 3 of 3 eligible ones are all of them"
    s = torch.tensor([math.inf, 0., math.inf, 0., 0.], dtype=torch.float64)
    some = torch.tensor([1, 1, 1, 0, 0]).bool()
    st = state(torch.zeros(5, dtype=torch.long), 9, 0, 10, 200)
    for tau in (None, 0., .5): assert torch.equal(by(-s, 3, tau)(st, None, some.expand(200, -1)), some.expand(200, -1))

def test_ties_are_broken_evenly():
    st = state(torch.zeros(5, dtype=torch.long), 9, 0, 10, N)
    got = sets(by(torch.zeros(5), 2)(st, None, torch.ones(N, 5, dtype=torch.bool)))
    assert chi2(got, {c: .1 for c in itertools.combinations(range(5), 2)}) > ACCEPT

def test_the_score_as_probability_draws_by_probabilities():
    class Fixed:
        def quality(self, where): return S5.expand(N, -1)
    st = state(torch.zeros(5, dtype=torch.long), 9, 0, 10, N)
    got = sets(TopK(low_probability, 2, .3)(st, Fixed(), torch.ones(N, 5, dtype=torch.bool)))
    assert chi2(got, exact_sets(S5.sigmoid(), .3, 2)) > ACCEPT and chi2(got, exact_sets(S5, .3, 2)) < REJECT

# ---- 7. How many

def k_dist(n, N, T, eta):
    sigma = max(0, min(eta, (1 - min(n / N + 1 / T, 1)) / (n / N)))
    return {K: p for K, p in enumerate(stats.binom(n, sigma).pmf(range(n + 1)))}

@pytest.mark.parametrize('eta', [.05, .3, 1.])
@pytest.mark.parametrize('i, T', [(5, 10), (7, 10), (3, 5)])
def test_k_is_binomial_in_each_row(eta, i, T):
    "Two kinds of rows in one batch: 20 free, and 8 free after a prompt of 12"
    free = torch.stack([torch.ones(20), (torch.arange(20) >= 12).float()]).bool().repeat(N // 4, 1)
    n = torch.tensor([math.ceil(20 * i / T), math.ceil(8 * i / T)]).repeat(N // 4)
    x = torch.where(free & (free.cumsum(1) > n[:, None]), 9, 1)
    k = binomial(eta)(state(x, 9, i, T, free=free))
    for row, total in ((0, 20), (1, 8)):
        dist, got = k_dist(n[row].item(), total, T, eta), Counter(k[row::2].tolist())
        assert chi2(got, dist) > ACCEPT
        if row: assert chi2(got, k_dist(n[row].item() + 12, 20, T, eta)) < REJECT      # alpha must not count the prompt

@pytest.mark.parametrize('T', [1, 3, 7, 10, 64, 100])
@pytest.mark.parametrize('free', [1, 5, 7, 64, 100])
def test_k_is_zero_at_the_last_step_and_when_all_is_written(T, free):
    for n in {n_committed(free, T - 2, T), free}:
        st = state(torch.where(torch.arange(free) < n, 1, 9), 9, T - 1, T, 300)
        assert binomial(1.)(st).sum() == 0

def test_k_needs_something_committed(): assert binomial(1.)(state([9] * 6, 9, 0, 10, 100)).sum() == 0

@given(hs.integers(1, 30), hs.integers(1, 30), hs.integers(0, 29), hs.integers(0, 35))
def test_the_guard(N, T, i, K):
    "PRISM corrects only if R > 0, n > R and n < N - R, and never more than may stay masked"
    i = min(i, T - 1)
    n = n_committed(N, i - 1, T)
    st = state(torch.where(torch.arange(N) < n, 1, 9), 9, i, T, 1)
    got = prism_guard(K)(st).item()
    assert got == (min(K, N - n_committed(N, i, T)) if K > 0 and n > K and n < N - K else 0)

@pytest.mark.parametrize('n, K', [(3, 3), (6, 4), (7, 3), (9, 1), (4, 0)])
def test_prism_skips_where_its_guard_fails_and_navira_does_not(n, K):
    "N = 10: n > K fails, n < N - K fails (twice), one mask left, K = 0"
    x, model = torch.where(torch.arange(10) < n, 1, 4), Tiny(10, 4)
    took = {}
    for name in CORRECTING:
        def watch(_, before, p, cleaned, after): took[name] = (before.committed & cleaned.masked).sum().item()
        after = step(policy(name, n_remask=K, on=0.), state(x, 4, n, 10, 1), model, watch)
        assert after.committed.sum() == n + 1
    assert {took[c] for c in COUPLED} == {0} and {took[d] for d in DECOUPLED} == {K}

def test_correction_is_on_from_on_to_off():
    st = lambda i, T: state([1] * 5 + [9] * 5, 9, i, T, 1)
    for T in (1, 2, 7, 10):
        for on, off in ((0., 1.), (.5, 1.), (.3, .6), (.5, .5)):
            assert [window(2, on, off)(st(i, T)).item() > 0 for i in range(T)] == [
                on * T <= i < off * T for i in range(T)
            ]

# ---- 8. Drawing a token

PROBS = [.05, .5, .15, .3]       # the third of the order .5, .3, .15, .05 crosses .9
def draws(p=.9, probs=PROBS, n=N, **kw):
    u = Noise(0, torch.arange(n)).uniform(0, 'token', 1)[:, 0]
    return nucleus(p, **kw)(torch.tensor(probs + [0.]).double().log().expand(n, -1), u)

def test_the_nucleus_excludes_or_includes_the_crossing_token():
    for p, kw, kept in (
        (0.9, {}, [1, 3]),
        (0.9, dict(keep_crossing=True), [1, 3, 2]),
        (0.3, {}, [1]),
        (0.3, dict(keep_crossing=True), [1]),
        (0.51, {}, [1]),
        (0.51, dict(keep_crossing=True), [1, 3]),
        (0.96, {}, [1, 3, 2]),
        (1.0, {}, [0, 1, 2, 3]),
        (1e-9, {}, [1]),
    ):
        dist = {v: PROBS[v] / sum(PROBS[w] for w in kept) for v in kept}
        tokens, prob = draws(p, **kw)
        assert set(tokens.tolist()) == set(kept)                               # the mask id, 4, never
        assert prob.tolist() == pytest.approx([dist[v] for v in tokens.tolist()])
        if len(kept) > 1:
            assert (
                chi2(Counter(tokens.tolist()), dist) > ACCEPT and chi2(Counter(tokens.tolist()), planted(dist)) < REJECT
            )

@given(
    hs.lists(hs.floats(-20, 20), min_size=1, max_size=8),
    hs.floats(0.01, 1),
    hs.lists(hs.floats(1e-12, 1 - 1e-12), min_size=1, max_size=6),
)
def test_the_nucleus_is_the_plain_loop(logits, p, us):
    lg = torch.tensor(logits + [-math.inf], dtype=torch.float64)
    q = lg.softmax(0)
    # a sum at the edge of p may round either way
    near = (q.sort(descending=True).values.cumsum(0) - p).abs().min() < 1e-9
    if near and p < 1: return
    tokens, prob = nucleus(p)(lg.expand(len(us), -1), torch.tensor(us, dtype=torch.float64))
    kept = truncate(q.tolist(), p)
    kept.pop(len(logits), None)
    for v, c, u in zip(tokens.tolist(), prob.tolist(), us):
        cdf = np.cumsum(list(kept.values()))
        assert v in kept and c == pytest.approx(kept[v])
        if abs(cdf - u).min() > 1e-9: assert v == pick(kept, u)

def test_draws_are_float64():
    "A tail of 1e-9 is reached by a uniform, which float32 would round away"
    assert categorical(torch.tensor([[1., 1e-9]]), torch.tensor([1 - 5e-10], dtype=torch.float64)).item() == 1
    assert categorical(torch.tensor([[1., 1e-9]]), torch.tensor([1 - 2e-9], dtype=torch.float64)).item() == 0
    lg = torch.tensor([[0., -20., -math.inf]])
    tail = math.exp(-20) / (1 + math.exp(-20))
    for f, want in ((0.9, 1), (1.1, 0)):
        assert nucleus(1.0)(lg, torch.tensor([1 - f * tail], dtype=torch.float64))[0].item() == want

def test_categorical_at_the_edges():
    lo, hi = 2.**-53, 1 - 2.**-53
    for w in (
        [0.0, 0.0, 1.0, 2.0, 0.0],
        [0.0, 3.0, 0.0, 0.0, 0.0],
        [1e-300, 0, 1e-300, 0, 0],
        [0.0, 1e300, 1e300, 0.0, 0.0],
        [1.0, 1.0, 1.0, 1.0, 1.0],
    ):
        p = torch.tensor([w], dtype=torch.float64)
        ok = p[0].nonzero()[:, 0]
        for u, want in ((0.0, ok[0]), (lo, ok[0]), (hi, ok[-1]), (1.0, ok[-1])):
            assert categorical(p, torch.tensor([u], dtype=torch.float64)).item() == want
    w = torch.tensor([0., 2., 0., 5., 3., 0.])
    u = Noise(1, torch.arange(N)).uniform(0, 'token', 1)[:, 0]
    dist = {1: .2, 3: .5, 4: .3}
    assert chi2(Counter(categorical(w.expand(N, -1), u).tolist()), dist) > ACCEPT

def by_sorting(lg, u, temperature, p, top_k, crossing):
    "Stable sort with indices, cumulate, cut, draw: as the equations read, one row after the other"
    out = []
    for l, v in zip(lg.double(), u):
        l = (l - l.max()) / (temperature or 1.)
        order = l.argsort(descending=True, stable=True)
        q = l[order].softmax(0)
        before = q.cumsum(0) - (q if crossing else 0)
        keep = (before <= p) if p < 1 else torch.ones_like(q, dtype=torch.bool)
        keep[0] = True
        if top_k: keep[top_k:] = False
        q = q * keep / (q * keep).sum()
        i = (
            int(v * min(int((l == l.max()).sum()), int(keep.sum())))
            if temperature == 0
            else min(int((q.cumsum(0) <= v).sum()), int(keep.sum()) - 1)
        )
        out.append((order[i].item(), q[i].item()))
    return out

@given(
    hs.lists(hs.lists(hs.integers(-6, 6), min_size=9, max_size=9), min_size=1, max_size=4),
    hs.integers(0, 2**20),
    hs.sampled_from([0, 0.5, 1.0, 2.0]),
    hs.sampled_from([0.35, 0.6, 0.9, 0.99, 1.0]),
    hs.sampled_from([None, 1, 3, 20]),
    hs.booleans(),
    hs.sampled_from([torch.float32, torch.float64]),
)
def test_a_draw_is_the_one_by_sorting_also_with_ties(rows, seed, temperature, p, top_k, crossing, dtype):
    lg = torch.tensor(rows, dtype=dtype) * .7
    lg[:, -1] = -torch.inf
    u = torch.rand(len(lg), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    d = drawer(temperature, p, top_k, crossing)
    tokens, prob = d(lg, u)
    want = by_sorting(lg, u, temperature, p, top_k, crossing)
    assert tokens.tolist() == [t for t, _ in want]
    torch.testing.assert_close(prob, torch.tensor([q for _, q in want], dtype=torch.float64), atol=1e-12, rtol=0)
    q = d.distribution(lg)
    torch.testing.assert_close(q.gather(1, tokens[:, None])[:, 0], prob, atol=1e-12, rtol=0)
    torch.testing.assert_close(q.sum(1), torch.ones(len(lg), dtype=torch.float64), atol=1e-12, rtol=0)

def test_side_by_side_is_a_map():
    "In order, every item once, in the caller's modes; an error arrives; the threads are given back"
    n = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16):
                got = list(
                    parallel_map(
                        lambda i: (
                            i,
                            torch.is_inference_mode_enabled(),
                            torch.is_autocast_enabled('cpu'),
                            torch.get_num_threads(),
                        ),
                        range(7),
                    )
                )
            assert [g[0] for g in got] == list(range(7)) and all(a and b and k == 1 for _, a, b, k in got)
            assert not any(
                parallel_map(lambda i: torch.is_inference_mode_enabled() or torch.is_autocast_enabled('cpu'), range(4))
            )
            assert list(parallel_map(abs, [])) == [] and torch.get_num_threads() == threads
            with pytest.raises(ZeroDivisionError): list(parallel_map(lambda i: 1 / i, [2, 0, 1]))
            halted = []
            # given up half-way
            next(it := parallel_map(abs, [1, 2, 3], halt=lambda: halted.append(1))); it.close() if threads > 1 else None
            assert halted == [1] * (threads > 1)
            # what a thread that starts now would get
            fresh = []
            (t := threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))).start(); t.join()
            assert fresh == [threads]
            with torch.no_grad(): assert not any(parallel_map(lambda i: torch.is_grad_enabled(), range(3)))
            inside, top = set(), []
            def busy(i): inside.add(i); top.append(len(inside)); time.sleep(.01); inside.discard(i)
            list(parallel_map(busy, range(8), most=2)); assert max(top) <= 2
    finally: torch.set_num_threads(n)

def test_an_error_stops_the_other_batches():
    seen, n = [], torch.get_num_threads()
    def progress(k):
        seen.append(k)
        if len(seen) == 3: raise RuntimeError('enough')
    try:
        torch.set_num_threads(2)
        with pytest.raises(RuntimeError, match='enough'):
            sample(random_joint(4, 3), 'backbone', 400, 4, batch_size=4, progress=progress)
    finally: torch.set_num_threads(n)
    assert len(seen) < 600                                                                  # of 800

@pytest.mark.parametrize('batch_size', [1, 3, 8])
def test_the_number_of_threads_changes_no_sample(batch_size):
    model, n = random_joint(4, 3), torch.get_num_threads()
    try:
        outs = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            seen = []
            outs.append(
                sample(model, 'navira', 6, 7, batch_size=batch_size, trace=True, on=0.0, eta=0.4, progress=seen.append)
            )
            assert sum(seen) == 7 * outs[-1].n_steps and max(seen) <= batch_size
    finally: torch.set_num_threads(n)
    for o in outs[1:]:
        assert torch.equal(o.tokens, outs[0].tokens) and torch.equal(o.n_forward, outs[0].n_forward)
        assert torch.equal(o.trace.x, outs[0].trace.x)
        assert torch.equal(o.trace.score.nan_to_num(9.), outs[0].trace.score.nan_to_num(9.))

@pytest.mark.parametrize('name', ['prism', 'prism-stochastic', 'navira', 'remedi', 'p2'])
def test_the_head_runs_where_it_is_read(name, one_thread, monkeypatch):
    "Rows without a correction get no quality, and the run is the same as if they did"
    import navira.peers  # noqa: F401  registers the policies
    from navira.models.denoiser import DiTForward, QualityHead
    lm, rule, asked, forward = small_lm(seed=3).double(), policy(name), [], QualityHead.forward
    monkeypatch.setattr(QualityHead, 'forward', lambda self, h, *a: asked.append(len(h)) or forward(self, h, *a))
    x = torch.full((6, 12), lm.mask_id); x[:, 0] = torch.arange(6)
    run = lambda: sample(lm, rule, 24, 6, prompt=x, batch_size=6, trace=True)
    cut = run(); few = sum(asked); asked.clear()
    monkeypatch.delattr(DiTForward, 'only')
    whole = run()
    assert torch.equal(cut.tokens, whole.tokens) and torch.equal(cut.n_forward, whole.n_forward)
    assert torch.equal(cut.trace.x, whole.trace.x)
    torch.testing.assert_close(cut.trace.score, whole.trace.score, equal_nan=True)
    assert few < sum(asked) if name.startswith('prism') else few == sum(asked)

def test_no_rows_to_draw(): assert len(nucleus(.9)(torch.empty(0, 5), torch.empty(0))[0]) == 0

# ---- 9. Noise

def philox_plainly(counter, key):
    "Random123's philox4x32-10, with Python's integers"
    (a, b, c, d), (k, l), m = counter, key, 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q & m, (p >> 32) ^ d ^ l, p & m
        k, l = (k + 0x9E3779B9) & m, (l + 0xBB67AE85) & m
    return a, b, c, d

ONES = 0xFFFFFFFF
@pytest.mark.parametrize(
    'counter, key, want',
    [
        ([0] * 4, (0, 0), '6627e8d5 e169c58d bc57ac4c 9b00dbd8'),
        ([ONES] * 4, (ONES, ONES), '408f276d 41c83b0e a20bc7c6 6d5451fd'),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            'd16cfe09 94fdcceb 5001e420 24126ea1',
        ),
    ],
)
def test_philox_known_answers(counter, key, want):
    assert (
        ' '.join(f'{int(v):08x}' for v in philox(counter, key))
        == want
        == ' '.join(f'{v:08x}' for v in philox_plainly(counter, key))
    )

word = hs.integers(0, ONES)
@given(hs.tuples(word, word, word, word), hs.tuples(word, word))
def test_philox_is_the_plain_one(counter, key):
    assert tuple(map(int, philox(counter, key))) == philox_plainly(counter, key)

def test_uniforms_stay_inside_the_open_interval(monkeypatch):
    for w, want in ((0, 2.**-53), (ONES, 1 - 2.**-53)):
        monkeypatch.setattr('navira.base.noise.philox', lambda *a: (torch.tensor(w),) * 4)
        u = Noise(0, torch.arange(1)).uniform(0, 'token', 1).item()
        assert 0 < u < 1 and u == pytest.approx(want)
        assert math.isfinite(-math.log(-math.log(u)))                          # a Gumbel too

def test_every_purpose_has_its_own_numbers(root):
    "A purpose is told by 32 bits of its hash, so no two of the library's may share them"
    text = ''.join(p.read_text() for p in (root / 'navira').rglob('*.py'))
    words = set(re.findall(r"""uniform\((?:[\w.]+,\s*)?['"]([^'"]+)['"]""", text)) | set(
        re.findall(r"purpose: str = '(\w+)'", text)
    )
    assert words >= {'token', 'order', 'ties', 'count', 'gumbel', 'flip', 'remask'}
    assert len({hashlib.blake2b(w.encode(), digest_size=4).digest() for w in words}) == len(words)
    noise = Noise(7, torch.arange(300))
    u = torch.stack([noise.uniform(i, w, 40).flatten() for w in sorted(words) for i in (0, 1)])
    r = np.corrcoef(u.numpy()) - np.eye(len(u))
    assert abs(r).max() < 5 / math.sqrt(u.shape[1]) and len(u.unique()) == u.numel()
    assert all(stats.kstest(v.numpy(), 'uniform').pvalue > 1e-4 for v in u)

@pytest.mark.parametrize('seed', [0, -1, 2**31, 2**32, 2**63, 2**64 - 1, -2**63])
def test_any_seed(seed):
    u = Noise(seed, torch.arange(200)).uniform(3, 'token', 50)
    assert u.shape == (200, 50) and u.dtype == torch.float64 and (u > 0).all() and (u < 1).all()
    assert stats.kstest(u.flatten().numpy(), 'uniform').pvalue > 1e-4
    assert not (u == Noise(seed + 1, torch.arange(200)).uniform(3, 'token', 50)).any()
    assert torch.equal(u, Noise(seed, torch.arange(200)).uniform(3, 'token', 50))

def test_numbers_follow_the_sample_and_the_position():
    u = Noise(5, torch.arange(10)).uniform(2, 'order', 30)
    assert torch.equal(Noise(5, torch.tensor([7, 2])).uniform(2, 'order', 12), u[[7, 2], :12])
    assert torch.equal(Noise(5, torch.arange(10))[torch.arange(10) % 3 == 1].uniform(2, 'order', 30), u[1::3])

# ---- 10. Bad input

def says(error, *parts):
    return pytest.raises(error, match='.*'.join(map(re.escape, map(str, parts))))

@pytest.mark.parametrize(
    'error, parts, kw',
    [
        (KeyError, ['navria', "'navira'"], dict(policy='navria')),
        (KeyError, ['PRISM'], dict(policy='PRISM')),
        (KeyError, ['xyz', 'expected one of', 'navira-det'], dict(policy='xyz')),
        (KeyError, ['tau_mi', "'tau_min'"], dict(tau_mi=0.1)),
        (KeyError, ['etaa', "'eta'"], dict(policy='prism', etaa=0.1)),
        (KeyError, ['tau'], dict(policy='prism', tau=0.1)),
        (KeyError, ['tau'], dict(tau=0.1)),
        (KeyError, ['eta'], dict(policy='backbone', eta=0.1)),
        (ValueError, ['budget=1', 'two-pass', '2'], dict(budget=1)),
        (ValueError, ['budget=0', '1'], dict(policy='prism', budget=0)),
        (ValueError, ['budget=-4'], dict(budget=-4)),
        (ValueError, ['budget=7.5', 'whole number'], dict(budget=7.5)),
        (ValueError, ['budget=nan'], dict(budget=math.nan)),
        (ValueError, ['budget=inf'], dict(budget=math.inf)),
        (ValueError, ['n=0'], dict(n=0)),
        (ValueError, ['n=-3'], dict(n=-3)),
        (ValueError, ['n=1.5'], dict(n=1.5)),
        (ValueError, ['length=0', '6'], dict(length=0)),
        (ValueError, ['length=7', '6'], dict(length=7)),
        (ValueError, ['length=2.5'], dict(length=2.5)),
        (ValueError, ['batch_size=0'], dict(batch_size=0)),
        (ValueError, ['batch_size=-1'], dict(batch_size=-1)),
        (ValueError, ['batch_size=1.5'], dict(batch_size=1.5)),
        (ValueError, ['tau_min=-0.1'], dict(tau_min=-0.1)),
        (ValueError, ['tau_max=inf'], dict(tau_max=math.inf)),
        (ValueError, ['tau_mid=nan'], dict(tau_mid=math.nan)),
        (ValueError, ['tau_min=0.6', 'tau_mid=0.2'], dict(tau_min=0.6)),
        (ValueError, ['p1=0.8', 'p2=0.75'], dict(p1=0.8)),
        (ValueError, ['p2=1'], dict(p2=1.0)),
        (ValueError, ['tau_min=0.3', 'tau_max=0.2'], dict(policy='navira-sigmoid', tau_min=0.3, tau_max=0.2)),
        (ValueError, ['k=-1'], dict(policy='navira-sigmoid', k=-1.0)),
        (ValueError, ['c=1.5'], dict(policy='navira-sigmoid', c=1.5)),
        (ValueError, ['h=1'], dict(policy='navira-quadratic', h=1.0)),
        (ValueError, ['tau', '-0.5'], dict(policy='navira', tau=-0.5)),
        (ValueError, ['tau', 'nan'], dict(policy='navira', tau=math.nan)),
        (ValueError, ['tau', 'inf'], dict(policy='prism-stochastic', tau=math.inf)),
        (ValueError, ['eta=1.1'], dict(eta=1.1)),
        (ValueError, ['eta=-0.1'], dict(policy='prism', eta=-0.1)),
        (ValueError, ['eta=nan'], dict(eta=math.nan)),
        (ValueError, ['on=0.9', 'off=0.5'], dict(on=0.9, off=0.5)),
        (ValueError, ['on=-0.1'], dict(on=-0.1)),
        (ValueError, ['off=1.5'], dict(off=1.5)),
        (ValueError, ['on=nan'], dict(on=math.nan)),
        (ValueError, ['top_p=0'], dict(top_p=0.0)),
        (ValueError, ['top_p=1.5'], dict(top_p=1.5)),
        (ValueError, ['top_p=-1'], dict(policy='backbone', top_p=-1.0)),
        (ValueError, ['top_p=nan'], dict(top_p=math.nan)),
        (KeyError, ['logits', "'logit'"], dict(score='logits')),
        (ValueError, ['prompt', '9 tokens', '6'], dict(prompt=torch.zeros(9, dtype=torch.long))),
        (ValueError, ['prompt', '2 prompts', 'n=3'], dict(n=3, prompt=torch.full((2, 6), 4))),
        (ValueError, ['prompt', '0..4', '9'], dict(prompt=torch.tensor([9]))),
        (ValueError, ['prompt', '-1'], dict(prompt=torch.tensor([-1]))),
        (ValueError, ['prompt', '6 given', 'nothing left'], dict(prompt=torch.zeros(6, dtype=torch.long))),
        (ValueError, ['prompt', 'tokenizer'], dict(prompt='abc')),
    ],
)
def test_bad_input_is_named_before_any_work(error, parts, kw):
    model = Tiny(6, 4)
    with says(error, *parts): sample(model, **{'policy': 'navira-piecewise', 'budget': 8, **kw})
    assert not model.rows

@pytest.mark.parametrize('bad', [-1., math.nan, math.inf])
@pytest.mark.parametrize('name', ['navira', 'prism-stochastic'])
def test_a_bad_temperature_from_a_function(name, bad):
    with says(ValueError, 'tau', f'{bad}'):
        sample(Tiny(8, 4), name, 16, 2, tau=lambda st: torch.full((len(st.x),), bad), n_remask=1, on=0.0)

def test_a_policy_has_its_hyper_parameters_already():
    with says(ValueError, 'eta'): sample(Tiny(6, 4), prism(), 4, eta=.1)

@pytest.mark.parametrize('K', [-1, math.nan, .5])
def test_a_number_of_remasks_is_a_whole_number(K):
    with says(ValueError, K): sample(Tiny(8, 4), 'navira', 16, n_remask=K, on=0.)

# ---- Schedules

GRID = np.linspace(0, 1, 401)
@pytest.mark.parametrize(
    'f, plain',
    [
        (getattr(schedules, n.removeprefix('navira-'))(**FORMS[n][0]), FORMS[n][1])
        for n in FORMS
        if n.startswith('navira-') and n != 'navira-det'
    ],
)
def test_schedules_are_those_of_the_paper(f, plain):
    got = np.array([f(u) for u in GRID])
    assert got == pytest.approx([plain(u) for u in GRID], rel=1e-12) and (np.diff(got) >= 0).all()

def test_progress_goes_from_zero_to_one_and_is_zero_for_one_step():
    st = State.start(torch.full((1, 3), 9), 9, 5, Noise(0, torch.arange(1)))
    assert [replace(st, i=i).u for i in range(5)] == [0, .25, .5, .75, 1] and replace(st, n=1).u == 0
    seen = []
    def tau(st): seen.append(st.u); return .3
    sample(Tiny(8, 4), 'navira', 16, 1, tau=tau, n_remask=1, on=0.)
    assert set(seen) - {0.} == {i / 7 for i in range(1, 8)}

@pytest.mark.parametrize('name', CORRECTING)
def test_nothing_committed_needs_no_scoring_pass(name):
    "C empty: pi is undefined, K counts as 0, and stage 1 is skipped"
    model = Tiny(6, 4)
    after = step(policy(name, n_remask=2, on=0.), state([4] * 6, 4, 0, 3, 5), model)
    assert model.rows == [5] and model.rated == 0 and after.n_forward.tolist() == [1] * 5

# ---- 11. What is asked of the model

@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('batch_size', [1, 4])
def test_only_what_is_needed_is_asked(name, batch_size, one_thread):
    "Logits where tokens are written only, quality only in steps that remask, passes over rows with work; all counted"
    model, hyper = Tiny(12, 4), dict(eta=.1, on=.5) if name in CORRECTING else {}
    out = sample(model, name, 48, 4, trace=True, batch_size=batch_size, **hyper)
    t = out.trace
    assert sum(model.asked) == t.revealed.sum() and not any(model.seen)
    assert sum(model.rows) == out.n_forward.sum() and (out.n_forward < 48).all()
    opens, takes = t.revealed.any(2), t.remasked.any(2)                        # [T, n]
    two = name in DECOUPLED
    assert torch.equal(out.n_forward, (opens.long() + takes if two else (opens | takes).long()).sum(0))
    groups = takes.split(batch_size, 1)
    assert model.rated == sum(int(g.any(1).sum()) for g in groups)
    if name in ('backbone', 'mdlm'): assert model.rated == 0
    else: assert takes.any() and (~takes & opens).any()

def test_the_scoring_pass_makes_no_logits():
    model = Tiny(10, 4)
    rule = policy('navira-det', n_remask=2, on=0.)
    step(rule, state(torch.where(torch.arange(10) < 6, 1, 4), 4, 6, 10, 3), model)
    assert (
        model.rows == [3, 3] and model.rated == 1 and model.asked == [3 * 3]
    )  # one token to go and two taken back, in each of three rows


def test_the_output_layer_runs_at_committed_positions_only():
    "The same on the network, where the vocabulary is the cost"
    model, seen = small_lm(7), []
    model.backbone.output_layer.register_forward_hook(lambda m, a, out: seen.append(out.shape))
    out = sample(model, 'navira', 20, 3, trace=True, eta=.5, on=0.)
    assert all(len(s) == 2 for s in seen) and sum(s[0] for s in seen) == out.trace.revealed.sum()

def test_the_trace_holds_the_scores_that_the_step_saw():
    "Quality of the committed tokens in a step that scored the row, NaN in a step that did not"
    model = Tiny(12, 4)
    t = sample(model, 'navira-det', 24, 4, trace=True, eta=.1, on=.4).trace
    for i in range(t.T):
        takes, x = t.remasked[i].any(1), t.x[i].long()
        want = torch.where((x != 4) & takes[:, None], TinyQuality(model, x), torch.nan).float()
        assert torch.equal(t.score[i].isnan(), want.isnan()), f'step {i}'
        assert torch.allclose(t.score[i], want, equal_nan=True)

def TinyQuality(model, x): return model(x).quality()


@pytest.mark.parametrize('name', ['backbone', 'prism', 'navira-det'])
def test_nan_is_refused(name):
    "Weights that have diverged must not end as tokens."
    lm = small_lm()
    with torch.no_grad(): lm.backbone.output_layer.linear.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match='NaN or infinity for the logits'): sample(lm, name, 4, 2)
