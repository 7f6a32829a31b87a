"""Rules that revise what is written: against enumeration, what every run keeps, reductions, naive forms that fail."""
import itertools, math
from collections import Counter
from dataclasses import replace
import pytest, torch
from hypothesis import given, strategies as hs
from navira.peers.revisers import Below, foreseen, level, remainder_last, unsure, vouched
from navira.peers.pieces import confidence, over
from navira.peers.correctors import doubts
from navira.peers.loops import looping
from navira.peers.mask_predict import worst_counts
from navira.core import Pass, Policy, State, TopK, n_unmask, step
from navira.diffusion import Forward, drawer, n_committed
from navira.base.noise import Noise
from navira.prism import low_quality
from navira.registry import policy
from navira.sampling import sample
from toys import ACCEPT, REJECT, Tiny, TinyPass, chi2, counted, planted, random_joint, small_lm

N = 50_000
UNSURE = ['entropy-remask', 'margin-remask']
NAMES = UNSURE + ['p2', 'remedi', 'mask-predict', 'prism-loop', 'informed-corrector']
EXACT_COUNT = UNSURE + ['p2', 'remedi']

class Raw(Tiny):
    "As `Tiny`, with logits at clean positions too, and one `quality`."
    def __call__(self, x):
        self.rows.append(len(x))
        return RawPass(self, x)

class RawPass(TinyPass):
    def logits(self, where):
        self.m.asked.append(int(where.sum()))
        out = (self.h + .5 * self.e)[where] @ self.m.W
        out[:, self.m.mask_id] = -torch.inf
        return out

def state(x, M, i, T, n=None, seed=0, fixed=None):
    x = torch.as_tensor(x)
    x = x.expand(n, -1) if n else x
    st = State.start(torch.full_like(x, M), M, T, Noise(seed, torch.arange(len(x))))
    return replace(
        st, x=x, i=i,
        fixed=torch.zeros_like(x, dtype=torch.bool) if fixed is None else torch.as_tensor(fixed).expand(x.shape),
    )

def drawn(model, name, budget, n=N, seed=0, **kw):
    return sample(model, name, budget, n, seed, batch_size=n, **kw).tokens

def tv(a, b): return sum(abs(a.get(k, 0) - b.get(k, 0)) for k in {*a, *b}) / 2

def conditional(model, x, j):
    "p(x_j = . | the other visible tokens), summed from the joint itself"
    a = model.joint.numpy()[tuple(slice(None) if k == j or v == model.mask_id else v for k, v in enumerate(x))]
    axis = sum(v == model.mask_id for v in x[:j])
    a = a.sum(tuple(k for k in range(a.ndim) if k != axis))
    return (a / a.sum()).tolist()

def fills(model, x, S):
    "Every way to draw the positions S of x independently given the visible rest: (tokens, probability, one for each)"
    V, p = model.mask_id, [conditional(model, x, j) for j in S]
    for tokens in itertools.product(range(V), repeat=len(S)):
        q = [p[a][t] for a, t in enumerate(tokens)]
        yield tokens, math.prod(q), q

def put(x, S, tokens):
    y = list(x)
    for j, t in zip(S, tokens): y[j] = t
    return tuple(y)

# ---- 1. Distributions

@pytest.fixture(scope='module')
def joint4(): return random_joint(4, 2, seed=3)

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
def test_p2_has_its_law(joint4, eta, T):
    expected = p2_texts(joint4, [2] * 4, T, eta)
    got = counted(drawn(joint4, 'p2', T, eta=eta))
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT

def test_p2_with_a_prompt(joint4):
    expected = p2_texts(joint4, [2, 1, 2, 2], 3, 2.)
    got = counted(drawn(joint4, 'p2', 3, eta=2., prompt=torch.tensor([2, 1, 2, 2]), seed=2))
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT

def mask_predict_texts(model, R, stale=True):
    L, M = model.length, model.mask_id
    expected = {((M,) * L, (0.,) * L): 1.}
    for i in range(R):
        new = Counter()
        for (x, c), w in expected.items():
            if not stale and i: c = tuple(conditional(model, x, j)[x[j]] for j in range(L))
            S = sorted(range(L), key=lambda j: c[j])[:max(1, L * (R - i) // R)] if i else list(range(L))
            seen = put(x, S, [M] * len(S))
            for tokens, q, own in fills(model, seen, S): new[put(x, S, tokens), put(c, S, own)] += w * q
        expected = new
    out = Counter()
    for (x, c), w in expected.items(): out[x] += w
    return out

def test_mask_predict_has_its_law_and_its_memory_is_stale(joint4):
    expected, fresh = mask_predict_texts(joint4, 4), mask_predict_texts(joint4, 4, stale=False)
    got = counted(drawn(joint4, 'mask-predict', 4, temperature=1.))
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT
    # naive: rate every token again in each pass
    assert tv(expected, fresh) > .01
    assert chi2(got, fresh) < REJECT

def test_mask_predict_by_hand():
    "Four positions: what was predicted first keeps its old probability, and is not asked again before its turn"
    # best probability at each position in the passes
    first, second = torch.tensor([.9, .3, .6, .5]), torch.tensor([.2, .95, .2, .7])
    class Known:
        mask_id, length, n = 8, 4, 0
        def __call__(self, x): self.n += 1; return KnownForward(x, (first, second, second)[self.n - 1])
    class KnownForward(Forward):
        def __init__(self, x, q):
            self.seen_masked, self.q = x == 8, torch.stack([q] + [(1 - q) / 7] * 7 + [0 * q], 1).double()
        def logits(self, where): return self.q.expand(len(where), -1, -1)[where].log()
    rule, model = policy('mask-predict'), Known()
    st = State.start(torch.full((1, 4), 8), 8, 3, Noise(0, torch.tensor([0])))
    gone = []
    for i in range(3):
        st = step(rule, st, model, lambda policy, st, p, clean, after: gone.append(clean.masked[0].tolist()))
    assert gone[1] == [False, True, False, True]                               # 4 * 2 // 3 = 2 lowest of .9 .3 .6 .5
    # of .9 .95 .6 .7; asked again, position 0 (.2) would go
    assert gone[2] == [False, False, True, False]
    assert st.conf[0].tolist() == pytest.approx([.9, .95, .2, .7])

def kernel_row(model, x, sets, clean):
    "{text: probability} of picking a set and drawing it as a product, given the cleaned text or each the others"
    out = Counter()
    for S, w in sets.items():
        if not w: continue
        if clean:
            options = [(t, q) for t, q, _ in fills(model, put(x, S, [model.mask_id] * len(S)), S)]
        else:
            options = [
                (t, math.prod(conditional(model, x, j)[v] for j, v in zip(S, t)))
                for t in itertools.product(range(model.mask_id), repeat=len(S))
            ]
        for t, q in options: out[put(x, S, t)] += w * q
    return out

def test_a_loop_step_has_its_row(joint4):
    x = (1, 0, 0, 1)
    own = {j: conditional(joint4, x, j)[x[j]] for j in range(4)}
    random = {S: 1 / 6 for S in itertools.combinations(range(4), 2)}
    worst = {tuple(sorted(sorted(own, key=own.get)[:2])): 1.}
    for kind, sets in dict(random=random, head=worst).items():
        st = state(x, 2, 3, 4, N, seed=5)
        got = step(policy('prism-loop', loop_steps=1, n_remask_loop=2, score=kind, top_p=1.), st, joint4)
        expected = kernel_row(joint4, x, sets, clean=True)
        assert chi2(counted(got.x), expected) > ACCEPT and chi2(counted(got.x), planted(expected)) < REJECT
        assert (got.n_forward == (1 if kind == 'random' else 2)).all()

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

def test_gibbs_and_only_gibbs_keeps_the_joint(joint4):
    texts = list(itertools.product(range(2), repeat=4))
    pi = dict(zip(texts, joint4.joint.flatten().tolist()))
    def after(sets, clean):
        out = Counter()
        for x in texts:
            for y, q in kernel_row(joint4, x, sets(x), clean).items(): out[y] += pi[x] * q
        return tv(out, pi)
    one = lambda x: {(j,): .25 for j in range(4)}
    worst = lambda x: {(min(range(4), key=lambda j: conditional(joint4, x, j)[x[j]]),): 1.}
    two = lambda x: {S: 1 / 6 for S in itertools.combinations(range(4), 2)}
    assert after(one, True) < 1e-15 and after(one, False) < 1e-15
    assert min(after(worst, True), after(two, False)) > 1e-3
    # even the cleaned pair: drawn as a product
    assert after(two, True) > 1e-3

# ---- 2. What every run keeps

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
    assert (t.x[:, fixed] == prompt[fixed]).all() and not (t.remasked | t.revealed)[:, fixed].any()
    assert (out.n_forward >= 1).all()
    assert (out.n_forward <= r['budget']).all()
    assert out.n_forward.sum() == sum(model.rows)
    masked = t.x == M
    tilde = torch.where(t.remasked, M, t.x[:-1])
    assert not (t.remasked & masked[:-1]).any() and not (t.revealed & (tilde != M)).any()
    assert torch.equal(t.x[1:][~t.revealed], tilde[~t.revealed])               # nothing changes that no flag explains
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
        alone = sample(model, r['name'], r['budget'], 1, r['seed'], prompt=prompt[b], first=b, **r['hyper'])
        assert torch.equal(alone.tokens[0], out.tokens[b]) and alone.n_forward[0] == out.n_forward[b]

@pytest.mark.parametrize('name', NAMES)
def test_small_network(name):
    "A real network, rows that finish or idle at different times"
    model = small_lm(vocab_size=11, model_length=12)
    prompt = torch.full((3, 12), model.mask_id); prompt[1, :6] = 1; prompt[2, 1:] = 2
    with torch.inference_mode():
        out = sample(model, name, 10, 3, prompt=prompt)
        for b in range(3):
            assert torch.equal(sample(model, name, 10, 1, prompt=prompt[b], first=b).tokens[0], out.tokens[b])
    assert not (out.tokens == model.mask_id).any()
    assert torch.equal(out.tokens[1, :6], prompt[1, :6])
    assert torch.equal(out.tokens[2, 1:], prompt[2, 1:])

# ---- 3. One ranking of written and unwritten positions

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

# ---- 4. p2, remedi

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

# ---- 5. entropy and margin at clean positions

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
        assert (out.trace.remasked & out.trace.revealed).any() == decoupled    # filled at once only by a second pass

# ---- 6. Rules with a memory, and loops

def test_mask_predict_counts_are_whole():
    # row b has b + 1 free positions
    st = state(torch.ones(40, 40).long(), 9, 0, 1, fixed=torch.arange(40)[:, None] < torch.arange(40))
    for R in range(1, 41):
        for i in range(R):
            expected = [0 if i == 0 else min(n, max(1, n * (R - i) // R)) for n in range(1, 41)]
            assert worst_counts(replace(st, i=i, n=R)).tolist() == expected
    assert int(5 * (1 - 8 / 10)) == 0 and 5 * 2 // 10 == 1                     # naive: a float that truncates one low

def test_mask_predict_in_one_iteration_is_the_best_guess_and_one_text():
    model = Raw(9, 4)
    best = model(torch.full((1, 9), 4)).logits(torch.ones(1, 9, dtype=torch.bool)).argmax(-1)
    out = sample(model, 'mask-predict', 1, 20).tokens
    assert torch.equal(out, best.expand(20, -1)) and len(sample(model, 'mask-predict', 6, 20).tokens.unique(dim=0)) == 1

def test_a_score_that_needs_a_pass_makes_mask_predict_dearer():
    "From memory a step costs one pass; a score that asks the network is no error, and costs one more"
    model, cheap = Raw(5, 3), policy('mask-predict')
    assert (sample(model, cheap, 3, 4).n_forward == 3).all()
    out = sample(model, replace(cheap, remask=TopK(low_quality, worst_counts)), 3, 4)
    assert out.n_steps == 3 and (out.n_forward == 5).all() and not (out.tokens == model.mask_id).any()

@pytest.mark.parametrize('kind', ['random', 'head'])
def test_no_loop_is_prism(kind):
    model = Raw(9, 4)
    for T in (1, 5, 9):
        a, b = (
            sample(model, 'prism-loop', T, 30, loop_steps=0, score=kind, eta=.4, on=.2, trace=True),
            sample(model, 'prism', T, 30, eta=.4, on=.2, trace=True),
        )
        assert torch.equal(a.trace.x, b.trace.x)
        assert torch.equal(a.trace.remasked, b.trace.remasked)
        assert torch.equal(a.n_forward, b.n_forward)

@given(hs.integers(1, 200), hs.sampled_from([1, 2]), hs.one_of(hs.none(), hs.integers(0, 60)))
def test_a_loop_pays_for_itself(budget, cost, loop_steps):
    loop, steps = looping(loop_steps, cost)
    if loop_steps is not None and cost * loop_steps >= budget:
        with pytest.raises(ValueError, match='leave no step'): steps(None, budget, None)
        return
    T = steps(None, budget, None)
    n = loop(T)
    assert n < T and T - n + cost * n in (budget, budget - (loop_steps is None and cost == 2))
    if loop_steps is None: assert n == budget // 4 if cost == 1 else abs(n - budget / 4) < 1

def test_more_than_there_are_never_reaches_the_prompt():
    model, M = Raw(6, 4), 4
    prompt = torch.tensor([[1, 2, M, 3, 1, M]])
    out = sample(model, 'prism-loop', 9, 40, prompt=prompt, loop_steps=6, n_remask_loop=6, trace=True)
    assert (out.tokens[:, [0, 1, 3, 4]] == torch.tensor([1, 2, 3, 1])).all()
    assert (out.trace.remasked[3:].sum(2) == 2).all()
    st = replace(state(out.tokens[:1], M, 0, 1), fixed=prompt != M)
    naive = st.uniform('order').masked_fill(~st.committed, -torch.inf).topk(6).indices
    # naive: topk reaches for -inf, the prompt
    assert (prompt != M)[0, naive[0]].any()

# ---- 7. The informed corrector

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

# ---- 8. Bad input

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'p2', dict(eta=-1.), 'eta=-1'),
        (ValueError, 'p2', dict(eta=math.inf), 'eta=inf'),
        (ValueError, 'p2', dict(eta=math.nan), 'eta=nan'),
        (ValueError, 'p2', dict(temperature=-1.), 'temperature=-1'),
        (ValueError, 'p2', dict(top_p=0.), 'top_p=0'),
        (KeyError, 'p2', dict(score='hed'), "did you mean 'head'"),
        (KeyError, 'remedi', dict(score='probabilty'), "did you mean 'probability'"),
        (ValueError, 'remedi', dict(temperature=-0.1), 'temperature=-0.1'),
        (ValueError, 'remedi', dict(block_length=0), 'block_length=0'),
        (ValueError, 'remedi', dict(block_length=2.5), 'block_length=2.5'),
        (ValueError, 'mask-predict', dict(temperature=-1.), 'temperature=-1'),
        (ValueError, 'prism-loop', dict(loop_steps=-1), 'loop_steps=-1'),
        (ValueError, 'prism-loop', dict(n_remask_loop=1.5), 'n_remask_loop=1.5'),
        (KeyError, 'prism-loop', dict(score='haed'), "did you mean 'head'"),
        (ValueError, 'prism-loop', dict(on=0.6, off=0.5), 'on=0.6'),
        (ValueError, 'prism-loop', dict(eta=2.), 'eta=2'),
        (ValueError, 'informed-corrector', dict(k=-1), 'k=-1'),
        (ValueError, 'informed-corrector', dict(k=1.5), 'k=1.5'),
        (ValueError, 'informed-corrector', dict(tau=-1.), 'tau=-1'),
        (ValueError, 'informed-corrector', dict(tau=math.inf), 'tau=inf'),
        (KeyError, 'informed-corrector', dict(score='margins'), "did you mean 'margin'"),
        (KeyError, 'informed-corrector', dict(schedule='cosin'), "did you mean 'cosine'"),
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
