"""Samplers: their distributions on joints known exactly, parity with the paper's algorithms
written a second time, and what every run keeps."""
import itertools, math

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.core import step
from navira.registry import policy
from navira.prompts import start_ids
from navira.sampling import sample
from helpers.core import (  # noqa: F401
    CORRECTING, COUPLED, DECOUPLED, FORMS, NAMES, S5, N, by, drawn, exact_sets, joint6, picked,
    sets, state)
from toys import (
    ACCEPT, REJECT, Exact, Tiny, chi2, counted, planted, random_joint, small_lm, transcribed,
    within)

# ---- Distributions on a joint known exactly

CHAIN = dict(T=3, eta=.6, on=.3)
# another rule, from which each can be told
OTHER = {'prism': 'navira-det', 'navira-det': 'navira', 'prism-stochastic': 'navira',
         'navira': 'navira-det'}

@pytest.fixture(scope='module')
def joint5(): return random_joint(5, 2, seed=3, floor=.02)

@pytest.fixture(scope='module')
def dists5(joint5):
    """Distribution of a whole run, from all masks, by enumeration of Algorithms 1 and 2 with
    PRISM's binomial K"""
    exact, x0 = Exact(joint5), [joint5.mask_id] * 5
    return {n: exact.chain(x0, coupled=n in COUPLED, tau=FORMS[n][1], **CHAIN) for n in OTHER}

@pytest.mark.parametrize('name', OTHER)
def test_a_whole_run_has_the_distribution_of_the_paper(name, joint5, dists5):
    hyper = dict(top_p=1., eta=CHAIN['eta'], on=CHAIN['on']) | FORMS[name][0]
    got = counted(drawn(joint5, name, CHAIN['T'] * (1 if name in COUPLED else 2), **hyper).tokens)
    assert chi2(got, dists5[name]) > ACCEPT and chi2(got, planted(dists5[name])) < REJECT
    assert chi2(got, dists5[OTHER[name]]) < ACCEPT / 10


@pytest.mark.parametrize('name', OTHER)
def test_one_step_with_two_remasks(name, joint6):
    """From (0, 1, 0, m, m, m), K = 2: sets by quality (Plackett-Luce at a temperature), uniform
    order, the right pass"""
    M = joint6.mask_id
    x, hyper, tau = (0, 1, 0, M, M, M), FORMS[name][0], FORMS[name][1](.5)
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

# ---- Parity with the algorithms written a second time

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
            model, start_ids(model, n, length, prompt)[0], T, seed, name in COUPLED, tau, P=P,
            **hyper,
        )
    assert torch.equal(out.tokens, want) and out.trace.remasked.sum(2).flatten().tolist() == taken
    return sum(taken)

@pytest.mark.parametrize('name', FORMS)
def test_parity_on_a_small_network(name):
    """Lazy logits and idle rows change nothing: tokens and numbers of remasks are those of the
    plain loops, in float32"""
    def check(M, model_of):
        prompt = torch.tensor([[1, M, M, M, 3, M, M, M, M, M, 2, M], [M] * 12,
                               [M, 5, 5, M, M, M, M, M, 2, M, M, M]])
        cases = (
            (12, None, dict(eta=0.3, on=0.0)),
            (7, prompt, dict(eta=0.9, on=0.25, off=0.9)),
            (5, None, dict(eta=0.5, P=1.0)),
            (16, prompt, dict(eta=0.2)),
        )
        return sum(
            same_as_transcribed(model_of(s), name, T, 3, 12, s, pr, **hyper) for s,
            (T, pr, hyper) in enumerate(cases)
        )
    assert check(10, small_lm) > 10
    # the mask need not be the last id
    assert check(0, lambda seed: small_lm(seed + 10, mask_id=0)) > 10

# ---- What every run keeps

@hs.composite
def runs(draw):
    "A policy of the paper, a budget, its hyper-parameters, and a prompt of several rows"
    name, L, n = draw(hs.sampled_from(NAMES)), draw(hs.integers(1, 14)), draw(hs.integers(1, 4))
    budget, hyper = draw(hs.integers(policy(name).passes, 2 * L + 5)), {}
    if name in CORRECTING:
        hyper = dict(eta=draw(hs.sampled_from([.05, .5, 1.])), on=draw(hs.sampled_from([0., .5])),
                     off=draw(hs.sampled_from([.7, 1.])),
                     n_remask=draw(hs.sampled_from([None, 1, 99])))
    g = torch.Generator().manual_seed(draw(hs.integers(0, 999)))
    given = torch.rand(n, L, generator=g) < draw(hs.floats(0, 1))
    given[:, -1] = False
    return name, budget, hyper, torch.where(given, 1, draw(hs.sampled_from([0, 4])))

@given(runs())
def test_counts_prompt_and_trace_of_every_run(r):
    name, budget, hyper, prompt = r
    M = prompt[0, -1].item()
    model, fixed = Tiny(prompt.shape[1], 4, M), prompt != M
    out = sample(model, name, budget, len(prompt), prompt=prompt, trace=True, **hyper)
    T, t = budget // policy(name).passes, out.trace
    masked = t.x == M
    assert out.n_steps == t.T == T and out.n_forward.sum() == sum(model.rows)
    assert torch.equal(t.x[0], prompt.int()) and torch.equal(t.x[-1], out.tokens.int())
    # only what was committed is taken back, only masks are written, and nothing else changes
    assert not (t.remasked & (masked[:-1] | fixed)).any()
    cleaned = torch.where(t.remasked, M, t.x[:-1])
    assert not (t.unmasked & (cleaned != M)).any() and not (t.unmasked & masked[1:]).any()
    assert torch.equal(t.x[1:][~t.unmasked], cleaned[~t.unmasked])
    if name != 'mdlm':
        free = (~fixed).sum(1).tolist()
        for i in range(T):
            counts = (~masked[i + 1] & ~fixed).sum(1).tolist()
            assert counts == [math.ceil(N * (i + 1) / T) for N in free]
    if name in COUPLED: assert not (t.remasked & t.unmasked).any()
    on, off = (hyper.get(k, 0.) for k in ('on', 'off'))
    assert not t.remasked[[i for i in range(T) if not within(i, T, on, off)]].any()

# ---- The draw at a temperature

@pytest.mark.parametrize('tau, scale', [
    *itertools.product([0., 5e-324, 1e-300, 1e-8], [1e-3, 1., 50., 700.]),
    *((1e-3, s) for s in (1., 50., 700.))])
def test_tiny_temperatures_are_greedy(tau, scale):
    "No overflow, no NaN: the K lowest, in every row"
    got = picked(2, tau, S5 * scale, n=2000)
    assert torch.equal(got, torch.tensor([1, 1, 0, 0, 0]).bool().expand(2000, -1))
    # a float32 score is fine
    assert torch.equal(got, picked(2, tau, (S5 * scale).float(), n=2000))

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


# ---- What is asked of the model


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('batch_size', [1, 4])
def test_only_what_is_needed_is_asked(name, batch_size, one_thread):
    """Logits where tokens are written only, quality only in steps that remask, passes over rows
    with work; all counted"""
    model, hyper = Tiny(12, 4), dict(eta=.1, on=.5) if name in CORRECTING else {}
    out = sample(model, name, 48, 4, trace=True, batch_size=batch_size, **hyper)
    t = out.trace
    assert sum(model.asked) == t.unmasked.sum() and not any(model.seen)
    assert sum(model.rows) == out.n_forward.sum() and (out.n_forward < 48).all()
    opens, takes = t.unmasked.any(2), t.remasked.any(2)                        # [T, n]
    two = name in DECOUPLED
    assert torch.equal(out.n_forward,
                       (opens.long() + takes if two else (opens | takes).long()).sum(0))
    groups = takes.split(batch_size, 1)
    assert model.rated == sum(int(g.any(1).sum()) for g in groups)
    if name in ('backbone', 'mdlm'): assert model.rated == 0
    else: assert takes.any() and (~takes & opens).any()


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


# ---- Large vocabularies

@pytest.mark.parametrize('name', ['mdlm', 'prism', 'navira-det'])
def test_of_a_large_vocabulary_no_pass_asks_for_much_at_once(name, one_thread):
    """A budget of one step wants a token everywhere; a model that says it has many words is
    asked portion by portion."""
    few, many = Tiny(12, 4), Tiny(12, 4)
    many.vocab_size = 2**23                       # four positions at a time
    budget = 2 if name in DECOUPLED else 1
    a, b = (sample(m, name, budget, 3, batch_size=3) for m in (few, many))
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward)
    assert few.asked == [36] and many.asked == [4] * 9
