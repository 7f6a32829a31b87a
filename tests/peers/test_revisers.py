"""Rules that revise what is written: against enumeration, what every run keeps, reductions, naive forms that fail."""
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.core import Pass, Policy, TopK, n_unmask, step
from navira.diffusion import Forward, drawer, n_committed
from navira.peers.loops import looping
from navira.scores import confidence, over
from navira.peers.revisers import Below, foreseen, level, remainder_last, unsure, vouched
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import state
from helpers.revisers import Raw, conditional, drawn, fills, joint4, put  # noqa: F401
from toys import ACCEPT, REJECT, chi2, counted, planted, small_lm

UNSURE = ['entropy-remask', 'margin-remask']
NAMES = UNSURE + ['p2', 'remedi', 'mgdm', 'mask-predict', 'prism-loop', 'informed-corrector']
EXACT_COUNT = UNSURE + ['p2', 'remedi', 'mgdm']

# ---- Distributions

def p2_texts(model, x0, T, eta):
    M, free = model.mask_id, [j for j, v in enumerate(x0) if v == model.mask_id]
    expected = {tuple(x0): 1.}
    for i in range(T):
        new, k = Counter(), math.ceil(len(free) * (i + 1) / T)
        for x, w in expected.items():
            masks = [j for j in free if x[j] == M]
            for tokens, q, own in fills(model, x, masks):
                c = {j: eta * math.log(conditional(model, x, j)[x[j]]) for j in free if x[j] != M}
                c |= {j: math.log(a) for j, a in zip(masks, own)}
                stay, z = sorted(free, key=lambda j: (-c[j], j in masks))[:k], put(x, masks, tokens)
                new[tuple(v if j in stay or j not in free else M for j, v in enumerate(z))] += w * q
        expected = new
    return expected

@pytest.mark.parametrize('eta,T', [(0., 2), (1., 3), (3., 4)])
def test_p2_has_its_distribution(joint4, eta, T):
    expected = p2_texts(joint4, [2] * 4, T, eta)
    got = counted(drawn(joint4, 'p2', T, eta=eta))
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT

def test_p2_with_a_prompt(joint4):
    expected = p2_texts(joint4, [2, 1, 2, 2], 3, 2.)
    got = counted(drawn(joint4, 'p2', 3, eta=2., prompt=torch.tensor([2, 1, 2, 2]), seed=2))
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT

# ---- What every run keeps

@hs.composite
def runs(draw):
    name, L, n = draw(hs.sampled_from(NAMES)), draw(hs.integers(1, 9)), draw(hs.integers(1, 4))
    budget = draw(hs.one_of(hs.integers(2, 2 * L + 5), hs.sampled_from([2 * L, 2 * L + 1, 24])))
    flag = draw(hs.booleans())
    eta = draw(hs.sampled_from([0., .05, .5, 1.]))
    hyper = {
        'p2': dict(
            eta=draw(hs.sampled_from([0., .5, 1., 7., 1e9])),
            temperature=draw(hs.sampled_from([0., .5, 1.])),
            score=['probability', 'head'][flag],
        ),
        'remedi': dict(score=['head', 'probability'][flag], temperature=draw(hs.sampled_from([0., 1.]))),
        'mask-predict': dict(temperature=draw(hs.sampled_from([0., 1.]))),
        'mgdm': dict(noise=draw(hs.sampled_from([0., .5, 9.])), temperature=draw(hs.sampled_from([0., 1.]))),
        'prism-loop': dict(
            loop_steps=draw(hs.sampled_from([None, 0, (budget - 1) // 2])),
            n_remask_loop=draw(hs.integers(0, L + 2)),
            score=['random', 'head'][flag],
            eta=eta, on=0.,
        ),
        'informed-corrector': dict(
            k=draw(hs.integers(0, L + 2)),
            tau=draw(hs.sampled_from([0., .3, 1., 1e6])),
            score=draw(hs.sampled_from(['margin', 'confidence'])),
        ),
    }.get(
        name,
        dict(
            eta=eta,
            on=draw(hs.sampled_from([0., .5])),
            n_remask=draw(hs.sampled_from([None, 1, 3, 99])),
            decoupled=flag,
        ),
    )
    given = draw(
        hs.lists(hs.lists(hs.booleans(), min_size=L, max_size=L).filter(lambda r: not all(r)), min_size=n, max_size=n)
    )
    V = draw(hs.integers(2, 5))
    return dict(
        name=name, L=L, n=n, budget=budget, hyper=hyper, given=torch.tensor(given), V=V,
        mask_id=draw(hs.sampled_from([V, 0])),
        batch_size=draw(hs.integers(1, n + 1)),
        seed=draw(hs.integers(0, 2**40)),
    )

def prompted(r):
    tokens = [v for v in range(r['V'] + 1) if v != r['mask_id']]
    return torch.where(r['given'], torch.tensor(tokens)[torch.arange(r['L']) % len(tokens)], r['mask_id'])

@given(runs())
def test_counts_budget_prompt_and_trace(r):
    model, M, prompt, fixed = Raw(r['L'], r['V'], r['mask_id']), r['mask_id'], prompted(r), r['given']
    out = sample(
        model, r['name'], r['budget'], r['n'], r['seed'], prompt=prompt, batch_size=r['batch_size'],
        trace=True, **r['hyper'],
    )
    t, T = out.trace, out.n_steps
    assert not (out.tokens == M).any() and (out.tokens >= 0).all() and (out.tokens <= r['V']).all()
    assert (t.x[:, fixed] == prompt[fixed]).all() and not (t.remasked | t.unmasked)[:, fixed].any()
    assert (out.n_forward >= 1).all()
    assert (out.n_forward <= r['budget']).all()
    assert out.n_forward.sum() == sum(model.rows)
    masked = t.x == M
    tilde = torch.where(t.remasked, M, t.x[:-1])
    assert not (t.remasked & masked[:-1]).any() and not (t.unmasked & (tilde != M)).any()
    assert torch.equal(t.x[1:][~t.unmasked], tilde[~t.unmasked])               # nothing changes that no flag explains
    free, written = (~fixed).sum(1), (~masked & ~fixed).sum(2)
    if r['name'] in EXACT_COUNT:
        count = remainder_last if r['name'] == 'remedi' else n_committed
        for i in range(T): assert torch.equal(written[i + 1], count(free, i, T))
    if r['name'] == 'mask-predict':
        assert torch.equal(written[1:], free.expand(T, -1))
        for i in range(1, T):
            assert torch.equal(t.remasked[i].sum(1), torch.minimum((free * (T - i) // T).clamp(min=1), free))
    if r['name'] == 'informed-corrector': assert (written.diff(dim=0) >= 0).all()
    if r['name'] == 'prism-loop':
        cost = 2 if r['hyper']['score'] == 'head' else 1
        loop = looping(r['hyper']['loop_steps'], cost)[0](T)
        assert T + (cost - 1) * loop <= r['budget'] and (written[T - loop:] == free).all()
        for i in range(T - loop, T):
            assert torch.equal(t.remasked[i].sum(1), free.clamp(max=r['hyper']['n_remask_loop']))

@given(runs())
def test_rows_of_a_batch_are_what_they_are_alone(r):
    model, prompt = Raw(r['L'], r['V'], r['mask_id']), prompted(r)
    out = sample(model, r['name'], r['budget'], r['n'], r['seed'], prompt=prompt, **r['hyper'])
    for b in range(r['n']):
        alone = sample(model, r['name'], r['budget'], range(b, b + 1), r['seed'], prompt=prompt[b], **r['hyper'])
        assert torch.equal(alone.tokens[0], out.tokens[b]) and alone.n_forward[0] == out.n_forward[b]

@pytest.mark.parametrize('name', NAMES)
def test_small_network(name):
    "A real network, rows that finish or idle at different times"
    model = small_lm(vocab_size=11, model_length=12)
    prompt = torch.full((3, 12), model.mask_id); prompt[1, :6] = 1; prompt[2, 1:] = 2
    with torch.inference_mode():
        out = sample(model, name, 10, 3, prompt=prompt)
        for b in range(3):
            assert torch.equal(sample(model, name, 10, range(b, b + 1), prompt=prompt[b]).tokens[0], out.tokens[b])
    assert not (out.tokens == model.mask_id).any()
    assert torch.equal(out.tokens[1, :6], prompt[1, :6])
    assert torch.equal(out.tokens[2, 1:], prompt[2, 1:])

# ---- One ranking of written and unwritten positions

scores = hs.lists(hs.lists(hs.integers(0, 3), min_size=6, max_size=6), min_size=3, max_size=3)
# prompt, clean, mask
kinds = hs.lists(hs.lists(hs.sampled_from('pcm'), min_size=6, max_size=6), min_size=3, max_size=3)

@given(scores, kinds, hs.integers(0, 5), hs.integers(0, 99))
def test_joint_ranking_is_a_sort(v, kind, i, seed):
    v = torch.tensor(v).double()
    fixed = torch.tensor([[k == 'p' for k in row] for row in kind])
    x = torch.tensor([[9 if k == 'm' else 1 for k in row] for row in kind])
    st = state(x, 9, i, 6, seed=seed, fixed=fixed)
    u, k = st.uniform('ties'), n_committed(st.n_free, i, 6)
    below = Below(lambda *_: v, level(n_committed))
    gone = below(st, None, st.committed)
    new = st.remask(gone)
    clean = new.committed | TopK(lambda *_: v, n_unmask)(new, None, st.masked)
    for b in range(3):
        free = [j for j in range(6) if kind[b][j] != 'p']
        if 'm' in kind[b]: want = sorted(free, key=lambda j: (-v[b, j].item(), u[b, j].item()))[:k[b]]
        else: want = free                                                      # a finished row is left alone
        assert clean[b].nonzero()[:, 0].tolist() == sorted(want)
    assert not (gone & ~below.rows(st, st.committed)[:, None]).any()

def test_ranking_the_two_kinds_apart_gives_the_count_and_another_set():
    v, st = torch.tensor([[.1, .5, .9, .8, .4]]).double(), state([[1, 1, 1, 9, 9]], 9, 3, 5)
    new, best = st.remask(Below(lambda *_: v, level(n_committed))(st, None, st.committed)), TopK(lambda *_: v, n_unmask)
    joint, apart = new.committed | best(new, None, st.masked), st.committed | best(st, None, st.masked)
    assert joint.sum() == apart.sum() == 4 and not torch.equal(joint, apart)

def test_a_strict_comparison_loses_the_count_on_ties():
    "P2's script masks what is strictly below a cut-off"
    st, v = state([[1, 1, 1, 9, 9, 9]], 9, 3, 6), torch.zeros(1, 6).double()
    keep = n_committed(6, 3, 6)
    cut = v.sort(descending=True).values[:, keep]
    assert ((v >= cut) & ~st.fixed).sum() == 6 and keep == 4                   # naive: all six stay
    new = st.remask(Below(lambda *_: v, level(n_committed))(st, None, st.committed))
    assert (new.committed | TopK(lambda *_: v, n_unmask)(new, None, st.masked)).sum() == 4

def test_without_doubt_it_is_the_confident_order():
    "Clean scores at +inf: the order of low-confidence, token for token"
    model, draw = Raw(9, 4), drawer()
    sure = confidence(draw)
    trusting = lambda st, p, where: torch.where(p.masked, sure(st, p, where & p.masked), torch.inf)
    kept = Policy(TopK(trusting, n_unmask), Below(trusting, level(n_committed)), draw=draw)
    for n in (3, 9, 20):
        a = sample(model, kept, n, 40, trace=True)
        b = sample(model, Policy(TopK(sure, n_unmask), draw=draw), n, 40)
        assert torch.equal(a.tokens, b.tokens) and not a.trace.remasked.any()

# ---- p2, remedi

def test_p2_at_eta_0_keeps_its_order_and_remasks_nothing():
    model = Raw(9, 4)
    for T in (1, 4, 9, 13):
        out = sample(model, 'p2', T, 60, eta=0., trace=True)
        plain = Policy(TopK(confidence(drawer()), n_unmask), draw=drawer())
        assert not out.trace.remasked.any() and torch.equal(out.tokens, sample(model, plain, T, 60).tokens)

def certain(L):
    "The second token is a copy of the first, so that ln p is exactly 0 at a mask; the rest is fair"
    class Copy:
        mask_id, length = 2, L
        def __call__(self, x): return CopyForward(x)
    class CopyForward(Forward):
        def __init__(self, x): self.x, self.seen_masked = x, x == 2
        def logits(self, where):
            p = torch.zeros(*self.x.shape, 3, dtype=torch.float64); p[..., :2] = .5
            p[:, 1, 0] = 1.; p[:, 1, 1] = 0.
            return p.log()[where]
    return Copy()

def test_a_certain_mask_does_not_win_a_tie_at_eta_0():
    model = certain(4)
    # one is to stand, one stands; position 1 is certain
    st = replace(state([[0, 2, 2, 2]], 2, 0, 4, 200))
    rule = policy('p2', eta=0.)
    assert (step(rule, st, model).x[:, 0] == 0).all()
    def unclamped(st, p, where):             # naive: 0 at clean positions, ln p at masks
        rate = lambda logits, u, at: logits.log_softmax(-1).gather(1, drawer()(logits, u)[0][:, None])[:, 0]
        return torch.where(p.masked, over(st, p, where & p.masked, rate), 0.)
    naive = replace(rule, unmask=TopK(unclamped, n_unmask), remask=Below(unclamped, level(n_committed)))
    x = step(naive, st, model).x
    assert (x[:, 0] == 2).any()

def test_a_large_eta_remasks_whatever_a_mask_outranks():
    model = Raw(8, 4)
    out = sample(model, 'p2', 8, 30, eta=1e9, trace=True)
    few, many = (int(sample(model, 'p2', 8, 30, eta=e, trace=True).trace.remasked.sum()) for e in (.5, 1.))
    assert few < many < int(out.trace.remasked.sum())
    # all of what stands, while there are masks to replace it
    for i in range(4):
        assert torch.equal(out.trace.remasked[i].sum(1), torch.full((30,), i))

def test_the_token_that_is_rated_is_the_token_that_is_drawn():
    model, draw = Raw(8, 5), drawer()
    st = state([[5, 5, 1, 2, 5, 5, 0, 5]], 5, 3, 8, 50)
    p, free = Pass(model, st), torch.ones_like(st.x, dtype=torch.bool)
    v = foreseen(draw)(st, p, free)
    tokens = draw(p.logits(st.masked), st.uniform('token')[st.masked])[0]
    logp = p.logits(st.masked).double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert torch.equal(v[st.masked], logp)
    clean = p.logits(st.committed).double().log_softmax(-1).gather(1, st.x[st.committed][:, None])[:, 0]
    assert torch.equal(foreseen(draw, 2.)(st, p, free)[st.committed], 2 * clean)
    trusted = torch.nn.functional.logsigmoid(p.quality(st.committed))
    assert torch.equal(vouched(draw)(st, p, free)[st.committed], trusted[st.committed])

def test_logits_are_asked_once_a_step():
    model = Raw(8, 5)
    sample(model, 'p2', 8, 6)
    assert len(model.asked) == len(model.rows) == 8

@pytest.mark.parametrize('name', ['p2', 'remedi', 'entropy-remask'])
def test_a_score_that_asks_everywhere_changes_nothing_but_the_bill(name):
    hyper = dict(eta=.3, on=0.) if name == 'entropy-remask' else {}
    model, rule = Raw(6, 4), policy(name, **hyper)
    def nosy(st, p, where):
        everywhere = torch.ones_like(where)
        assert p.logits(everywhere).shape == (where.numel(), 5) and p.quality(everywhere).shape == where.shape
        return rule.remask.score(st, p, where)
    asks = replace(rule, remask=replace(rule.remask, score=nosy))
    a, b = sample(model, rule, 8, 20, 1, trace=True), sample(model, asks, 8, 20, 1)
    assert a.trace.remasked.any() and torch.equal(a.tokens, b.tokens) and (b.n_forward >= a.n_forward).all()

@pytest.mark.parametrize('score', ['head', 'probability'])
def test_one_block_is_no_blocks(score):
    model = Raw(12, 4)
    assert torch.equal(
        sample(model, 'remedi', 12, 9, block_length=12, score=score, temperature=1.).tokens,
        sample(model, 'remedi', 12, 9, score=score, temperature=1.).tokens,
    )

def test_blocks_are_filled_in_turn_and_others_left_alone():
    model, M = Raw(12, 4), 4
    prompt = torch.full((2, 12), M); prompt[1, :4] = 2
    out = sample(model, 'remedi', 12, 2, prompt=prompt, block_length=4, temperature=1., trace=True)
    t = out.trace
    for b, first in ((0, 0), (1, 4)):
        n = (12 - first) // 4
        for i in range(12):
            j = i * n // 12
            a, z = first + 4 * j, first + 4 * j + 4
            changed = (t.x[i + 1, b] != t.x[i, b]).nonzero()[:, 0].tolist()
            assert all(a <= c < z for c in changed)
            assert (t.x[i + 1, b, z:] == M).all()
            assert (t.x[i + 1, b, :a] != M).all()
            s, e = -(-j * 12 // n), -(-(j + 1) * 12 // n)
            assert (t.x[i + 1, b, a:z] != M).sum() == remainder_last(torch.tensor(4), i - s, e - s)

def test_the_remainder_goes_last():
    counts = [remainder_last(torch.tensor([7, 3]), i, 5).tolist() for i in range(5)]
    assert counts == [[1, 0], [2, 0], [3, 1], [5, 2], [7, 3]]

# ---- mgdm

def transcribed(model, x, T, seed, noise):
    "The public loop at argmax: a candidate everywhere, the floor(N t / T) lowest of score + noise are masked"
    x, fixed, M = x.clone(), x != model.mask_id, model.mask_id
    for i in range(T):
        t, u = T - 1 - i, Noise(seed, torch.arange(len(x))).uniform(i, 'gumbel', x.shape[1]).tolist()
        scores, new = model(x).logits(torch.ones_like(fixed)).log_softmax(-1).view(*x.shape, -1).max(-1)
        y = torch.where(fixed, x, new)
        for b in range(len(x)):
            free = [j for j in range(x.shape[1]) if not fixed[b, j]]
            rate = {j: scores[b, j].item() - noise * t / T * math.log(-math.log(u[b][j])) for j in free}
            for j in sorted(free, key=rate.get)[:len(free) * t // T]: y[b, j] = M
        x = y
    return x

@given(hs.integers(1, 9), hs.integers(2, 5), hs.integers(1, 14), hs.integers(0, 2**40), hs.sampled_from([0., .5, 3.]))
def test_mgdm_is_the_public_loop(L, V, T, seed, noise):
    model = Raw(L, V, seed=seed % 97)
    given = torch.rand(4, L, generator=torch.Generator().manual_seed(seed)) < .3
    given[:, 0] = False
    prompt = torch.where(given, torch.arange(L) % V, V)
    out = sample(model, 'mgdm', T, 4, seed, prompt=prompt, noise=noise)
    assert torch.equal(out.tokens, transcribed(model, prompt, T, seed, noise)) and (out.n_forward == T).all()

def test_mgdm_replaces_tokens_in_place_and_p2_does_not():
    model = Raw(9, 4)
    for name, some in (('mgdm', True), ('p2', False)):
        t = sample(model, name, 9, 30, trace=True, temperature=0.).trace
        stood, stands = t.x[:-1] != 4, t.x[1:] != 4
        assert (stood & stands & (t.x[:-1] != t.x[1:])).any() == some

# ---- entropy and margin at clean positions

def test_the_planted_position_is_picked_and_a_one_hot_would_tie():
    L = torch.full((6, 5), -9.).double(); L[:, 4] = -torch.inf
    L[torch.arange(6), torch.tensor([0, 1, 2, 3, 0, 1])] = 9.
    L[3, :4] = 0.                                                              # the flat one
    # two that tie nearly: the smallest margin but one
    L[5, :2] = torch.tensor([9., 8.9])
    class Planted(Forward):
        def logits(self, where): return L.expand(len(where), -1, -1)[where]
    x = torch.tensor([[0, 1, 2, 3, 4, 4]])
    st = state(x, 4, 3, 6)
    p, flat = Pass(lambda x: Planted(), st), [False, False, False, True, False, False]
    for score in unsure.values():
        assert TopK(score, 1)(st, p, st.committed)[0].tolist() == flat
        assert score(st, p, st.committed)[0, 4:].isnan().all()                 # NaN where nobody asked
        assert score(st, p, torch.ones_like(st.masked))[0].isfinite().all()    # and a number wherever somebody asks
        fixed = replace(st, fixed=torch.tensor([flat]))
        assert not TopK(score, 9)(fixed, p, fixed.committed)[0, 3]             # a prompt never
    onehot = torch.special.entr(torch.nn.functional.one_hot(x[0], 5).double()).sum(-1)
    tied, again = TopK(lambda *_: onehot[None], 1), lambda seed: replace(st, noise=Noise(seed, torch.arange(1)))
    picked = [tied(again(s), None, st.committed)[0].int().argmax().item() for s in range(40)]
    assert set(picked) == {0, 1, 2, 3}                                         # naive: the noise decides

@pytest.mark.parametrize('name', UNSURE)
def test_without_remasks_both_are_the_backbone(name):
    model = Raw(9, 4)
    plain = sample(model, 'backbone', 5, 30).tokens
    for hyper in (dict(n_remask=0), dict(on=1.), dict(eta=0.)):
        assert torch.equal(sample(model, name, 5, 30, decoupled=False, **hyper).tokens, plain)
        assert torch.equal(sample(model, name, 10, 30, decoupled=True, **hyper).tokens, plain)

@pytest.mark.parametrize('name', UNSURE)
def test_the_flag_is_prism_or_navira_det_with_another_score(name):
    model = Raw(9, 4)
    for decoupled, base, budget in ((False, 'prism', 6), (True, 'navira-det', 12)):
        rule = policy(base, eta=.4, on=0.)
        rule = replace(rule, remask=replace(rule.remask, score=unsure[name.split('-')[0]]))
        out = sample(model, name, budget, 30, decoupled=decoupled, eta=.4, on=0., trace=True)
        assert torch.equal(out.tokens, sample(model, rule, budget, 30).tokens) and out.trace.remasked.any()
        assert (out.trace.remasked & out.trace.unmasked).any() == decoupled    # filled at once only by a second pass

# ---- Bad input

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'p2', dict(eta=-1.), 'eta=-1'),
        (ValueError, 'p2', dict(eta=math.inf), 'eta=inf'),
        (ValueError, 'p2', dict(eta=math.nan), 'eta=nan'),
        (ValueError, 'p2', dict(temperature=-1.), 'temperature=-1'),
        (ValueError, 'p2', dict(top_p=0.), 'top_p=0'),
        *[(ValueError, 'mgdm', dict(noise=v), f'noise={v}') for v in (-1., math.inf, math.nan)],
        (ValueError, 'mgdm', dict(temperature=-1.), 'temperature=-1'),
        (KeyError, 'p2', dict(score='hed'), "did you mean 'head'"),
        (KeyError, 'remedi', dict(score='probabilty'), "did you mean 'probability'"),
        (ValueError, 'remedi', dict(temperature=-0.1), 'temperature=-0.1'),
        (ValueError, 'remedi', dict(block_length=0), 'block_length=0'),
        (ValueError, 'remedi', dict(block_length=2.5), 'block_length=2.5'),
        *[
            (ValueError, n, h, t)
            for n in UNSURE
            for h, t in (
                (dict(eta=-0.1), 'eta=-0.1'),
                (dict(on=0.6, off=0.5), 'on=0.6'),
                (dict(n_remask=-1), 'n_remask=-1'),
                (dict(top_p=1.5), 'top_p=1.5'),
                (dict(decoupled='yes'), 'true or false'),
                (dict(decoupled=1), 'true or false'),
            )
        ],
    ],
)
def test_bad_input_is_named_when_the_policy_is_built(error, name, hyper, text):
    with pytest.raises(error) as e: policy(name, **hyper)
    assert text in str(e.value)

def test_bad_input_that_depends_on_the_run_is_named_before_a_pass():
    cases = [
        ('remedi', 9, dict(block_length=4), 'does not divide'),
        ('remedi', 2, dict(block_length=3), 'at least 3'),
        ('prism-loop', 4, dict(loop_steps=4), 'leave no step'),
        ('prism-loop', 6, dict(loop_steps=3, score='head'), 'at most 2'),
        ('informed-corrector', 1, {}, 'two-pass'),
    ]
    for name, budget, hyper, text in cases:
        model = Raw(9, 4)
        with pytest.raises(ValueError, match=text): sample(model, name, budget, 2, **hyper)
        assert not model.rows

def test_a_rule_that_asks_the_head_is_refused_without_one():
    model = small_lm(quality_blocks=None)
    head = dict(score='head')
    for name, hyper in (('p2', head), ('remedi', {}), ('prism-loop', {}), ('prism-loop', head)):
        with pytest.raises(ValueError, match='quality head'): sample(model, name, 8, 1, **hyper)
    for name, hyper in (
        ('p2', {}),
        ('remedi', dict(score='probability')),
        ('mask-predict', {}), ('informed-corrector', {}), ('entropy-remask', {}),
    ):
        sample(model, name, 8, 1, **hyper)
