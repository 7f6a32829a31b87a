"""The informed corrector and CORE: what they redraw, and from what."""
import itertools, math
from collections import Counter

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.core import Pass, State, step
from navira.diffusion import Forward
from navira.peers.correctors import Before, brittle, doubts, is_check, likeliest, n_checks, with_checks
from navira.peers.revisers import unsure
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import N, state
from helpers.revisers import Raw, conditional, joint4, kernel_row  # noqa: F401
from toys import ACCEPT, REJECT, chi2, counted, planted

@pytest.mark.parametrize('kind', doubts)
def test_a_correction_has_its_row_and_redraws_at_once(joint4, kind):
    x, tau, k = (0, 1, 1, 0), .7, 2
    c = []
    for j in range(4):
        p = conditional(joint4, x, j)
        c.append(math.log(p[x[j]]) - (math.log(p[1 - x[j]]) if kind == 'margin' else 0))
    sets, w = Counter(), {j: math.exp(-c[j] / tau) for j in range(4)}
    for a, b in itertools.permutations(range(4), 2):
        sets[tuple(sorted((a, b)))] += w[a] / sum(w.values()) * w[b] / (sum(w.values()) - w[a])
    expected = kernel_row(joint4, x, sets, clean=False)
    got = step(policy('informed-corrector', k=k, tau=tau, score=kind), state(x, 2, 4, 5, N, seed=7), joint4)
    assert chi2(counted(got.x), expected) > ACCEPT and chi2(counted(got.x), planted(expected)) < REJECT
    # not masked: each is drawn given the other
    assert chi2(counted(got.x), kernel_row(joint4, x, sets, clean=True)) < REJECT
    assert (got.n_forward == 1).all()

def test_it_is_the_predictor_when_nothing_is_redrawn():
    model = Raw(9, 4)
    for schedule in ('cosine', 'linear'):
        for T in (1, 4, 7):
            assert torch.equal(
                sample(model, 'informed-corrector', 2 * T, 30, k=0, schedule=schedule).tokens,
                sample(model, 'mdlm', T, 30, top_p=1., schedule=schedule).tokens,
            )

def test_the_last_prediction_is_corrected_too():
    model = Raw(6, 4)
    out = sample(model, 'informed-corrector', 8, 200, k=3, trace=True)
    assert out.n_steps == 5 and (out.trace.x[4] != 4).all() and (out.trace.x[4] != out.trace.x[5]).any()
    # and there was nothing to correct before the first
    assert not out.trace.remasked[0].any()

def test_the_two_best_are_not_the_margin():
    "p = (.02, .90, .08) with token 0 standing: sure, and wrong"
    logp = torch.tensor([[.39, .40, .21, 0], [.02, .90, .08, 0]]).double()
    class Known(Forward):
        def logits(self, where): return logp.log()[where[0]]
    st = state([[0, 0]], 3, 0, 1)
    p = Pass(lambda x: Known(), st)
    by = {k: f(st, p, st.committed)[0] for k, f in dict(**doubts, two_best=unsure['margin']).items()}
    assert [v.argmax().item() for v in by.values()] == [1, 1, 0]
    assert (by['margin'] > 0).all()                                            # another token would be better at both
    assert by['margin'][1].item() == pytest.approx(math.log(.90 / .02))

# ---- core

def everywhere(model, x):
    "The distribution at every position, clean ones too"
    return model(x[None]).logits(torch.ones(1, len(x), dtype=torch.bool)).softmax(-1).tolist()

def core_loop(model, x, T, m, k, every, threshold, protect):
    "CORE's loop for one row at temperature 0: ids, passes, tokens replaced"
    x, M, n, replaced = x.clone(), model.mask_id, 0, 0
    free = [j for j in range(len(x)) if x[j] == M]
    base, rest = divmod(len(free), T)
    best = lambda q: max(range(len(q)), key=q.__getitem__)
    for i in range(T):
        fill = base + (i < rest)
        if not fill: continue
        p, masks, put = everywhere(model, x), [j for j in free if x[j] == M], {}
        n += 1
        if every and k and i and i % every == 0 and int(.25 * T) <= i < int(.75 * T):
            lead = {j: max(p[j]) - sorted(p[j])[-2] for j in free[:len(free) - protect] if x[j] != M}
            C = sorted(lead, key=lead.get)[:m]
            if C:
                seen = x.clone()
                seen[C] = M
                q, n = everywhere(model, seen), n + 1
                ok = [j for j in C if best(q[j]) != x[j] and max(q[j]) >= threshold]
                worst = sorted(ok, key=lambda j: q[j][x[j]])[:min(k, fill)]
                put, replaced = {j: best(q[j]) for j in worst}, replaced + len(worst)
        for j in sorted(masks, key=lambda j: -max(p[j]))[:fill]: put[j] = best(p[j])
        for j, v in put.items(): x[j] = v
    return x, n, replaced

how = hs.fixed_dictionaries(dict(m=hs.integers(0, 9), k=hs.integers(0, 3), every=hs.integers(0, 4),
                                 threshold=hs.sampled_from([0., .3, .6]), protect=hs.sampled_from([0, 3, 16])))
@given(hs.integers(0, 60), hs.integers(0, 4), hs.integers(1, 12), how)
def test_core_is_its_loop(seed, P, T, hyper):
    model = Raw(10, 5, seed=seed)
    x = torch.full((1, 10), 5)
    x[0, torch.randperm(10, generator=torch.Generator().manual_seed(seed))[:P]] = torch.arange(P)
    st, rule = State.start(x, 5, T, Noise(seed, torch.arange(1))), policy('core', **hyper)
    for _ in range(T): st = step(rule, st, model)
    want, n, _ = core_loop(model, x[0], T, **hyper)
    assert torch.equal(st.x[0], want) and st.n_forward[0] == n

def test_the_loop_of_that_test_does_replace():
    runs = [core_loop(Raw(14, 5, seed=s), torch.full((14,), 5), 12, 6, 1, 2, .3, 0)[2] for s in range(10)]
    assert sum(runs) > 5

def test_core_without_checks_is_llada_and_pays_for_those_it_makes():
    model = Raw(20, 4)
    run = lambda name, budget, **kw: sample(model, name, budget, 30, temperature=1., **kw)
    for T in (1, 5, 20): assert torch.equal(run('core', T, every=0).tokens, run('llada-low-confidence', T).tokens)
    out = run('core', 13, every=2, threshold=1., protect=0)
    assert out.n_steps == 10 and (out.n_forward == 13).all()                        # checks at 2, 4 and 6
    assert torch.equal(out.tokens, run('llada-low-confidence', 10).tokens)
    assert (run('core', 13, every=2, protect=20).n_forward == 10).all()        # nothing to check, nothing paid

@given(hs.integers(1, 300), hs.integers(0, 12))
def test_the_budget_pays_for_steps_and_checks(budget, every):
    T = with_checks(every)(None, budget, None)
    cost = lambda T: T + sum(is_check(i, T, every) for i in range(T))
    assert n_checks(T, every) == cost(T) - T and cost(T) <= budget < cost(T + 1)
    if every == 8 and budget == 136: assert T == 128

def test_no_budget_takes_long_to_share_out():
    T = with_checks(1)(None, 10**6, None)
    assert T + n_checks(T, 1) <= 10**6 < T + 1 + n_checks(T + 1, 1) and abs(T - 2 / 3 * 10**6) < 2

def test_a_check_asks_without_the_candidates_and_of_rows_that_have_some():
    "A row with nothing written is not run again, and the check sees masks where the candidates stood"
    seen = []
    class Watched(Raw):
        def __call__(self, x): seen.append(x.clone()); return super().__call__(x)
    model = Watched(6, 4)
    st = state([[0, 1, 2, 4, 4, 4], [4, 4, 4, 4, 4, 4]], 4, 3, 6)
    out = step(policy('core', m=2, every=3, protect=0, threshold=0.), st, model)
    assert [len(x) for x in seen] == [2, 1] and (seen[1] == 4).sum() == 3 + 2
    assert out.n_forward.tolist() == [2, 1]
    changed = (out.x[0] != st.x[0]) & ~st.masked[0]
    assert changed.sum() <= 1 and not changed[3:].any()

def test_what_is_brittle_by_hand():
    "Four candidates: kept by the argmax, changed, changed and worse, changed for something unlikely"
    rows = torch.tensor([[.6, .2, .2, 0], [.2, .5, .3, 0], [.1, .3, .6, 0], [.05, .32, .33, 0]]).double()
    rows[3, :3] = torch.tensor([.2, .41, .39])
    class Known(Forward):
        def logits(self, where): return rows.log()[where[0]]
    st = state([[0, 0, 0, 0]], 3, 0, 1)
    q = Pass(lambda x: Known(), st.remask(st.committed))
    s = brittle(.45)(st, q, st.committed)[0]
    assert s.isnan().tolist() == [True, False, False, True]
    assert s[1:3].tolist() == pytest.approx([-math.log(.2), -math.log(.1)], abs=1e-7)
    tokens, sure = q.drawn(likeliest, st.committed, 'check')
    assert tokens.tolist() == [0, 1, 2, 1] and sure.tolist() == pytest.approx([.6, .5, .6, .41])

def test_the_last_free_positions_are_not_the_last_positions():
    st = state([[0, 1, 2, 0, 1, 2]], 9, 0, 1, fixed=[[False, True, False, False, True, True]])
    everyone = lambda st, p, eligible: eligible
    for n, left in ((0, [0, 2, 3]), (1, [0, 2]), (2, [0]), (3, [])):
        assert Before(n, everyone)(st, None, st.committed)[0].nonzero()[:, 0].tolist() == left

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'informed-corrector', dict(k=-1), 'k=-1'),
        (ValueError, 'informed-corrector', dict(k=1.5), 'k=1.5'),
        (ValueError, 'informed-corrector', dict(tau=-1.), 'tau=-1'),
        (ValueError, 'informed-corrector', dict(tau=math.inf), 'tau=inf'),
        (KeyError, 'informed-corrector', dict(score='margins'), "did you mean 'margin'"),
        (KeyError, 'informed-corrector', dict(schedule='cosin'), "did you mean 'cosine'"),
        (ValueError, 'core', dict(m=-1), 'm=-1'),
        (ValueError, 'core', dict(k=.5), 'k=0.5'),
        (ValueError, 'core', dict(every=-8), 'every=-8'),
        (ValueError, 'core', dict(threshold=1.1), 'threshold=1.1'),
        (ValueError, 'core', dict(protect=-1), 'protect=-1'),
        (ValueError, 'core', dict(temperature=-1.), 'temperature=-1'),
    ],
)
def test_bad_input_is_named_when_the_policy_is_built(error, name, hyper, text):
    with pytest.raises(error) as e: policy(name, **hyper)
    assert text in str(e.value)
