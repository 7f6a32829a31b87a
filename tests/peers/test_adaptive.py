"""As many as the model is sure of: Fast-dLLM, KLASS, EB, DUS and first-hitting against loops, joints and bounds."""
import itertools, math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.core import Pass, State, pick, step
from navira.diffusion import Forward, drawer
from navira.peers.adaptive import AtLeast, dilated, divergence, dus, eb, excess, fast_dllm, klass
from navira.scores import negentropy
from navira.registry import policy
from navira.sampling import n_steps, sample
from helpers.orders import (  # noqa: F401
    SEEDS, distributions, drawn, joint3, joint_of, low_confidence, prompts, refused, state, top)
from helpers.peers import N
from toys import ACCEPT, REJECT, Tiny, chi2, counted, planted, random_joint

def ent(q): return -sum(a * math.log(a) for a in q.tolist() if a > 0)

def confident(model, x, length, threshold):
    "Fast-dLLM's loop: the number of passes too"
    x, P, n = x.clone(), int((x != model.mask_id).sum()), 0
    for b in range(0, len(x) - P, length):
        while any(x[P + b:P + b + length] == model.mask_id):
            q = distributions(model, x)
            c = {j: a.max().item() for j, a in q.items() if j < P + b + length}
            for j in c:
                if c[j] >= threshold or j == top(c, 1)[0]: x[j] = q[j].argmax()
            n += 1
    return x, n

def bounded(model, x, gamma, rate):
    "EB's loop"
    x, n = x.clone(), 0
    while q := distributions(model, x):
        order, h = top({j: rate(a) for j, a in q.items()}, len(q)), []
        for j in order:
            h.append(ent(q[j]))
            if sum(h) - max(h) > gamma + 1e-12: break
            x[j] = q[j].argmax()
        n += 1
    return x, n

def spaced(model, x, length, threshold, base=2):
    "DUS's loop with deferral"
    x, P = x.clone(), int((x != model.mask_id).sum())
    for b in range(P, len(x), length):
        levels, seen, stride = [], set(), length // base
        while stride:
            levels.append([j for j in range(0, length, stride) if j not in seen])
            seen |= set(levels[-1])
            stride //= base
        if len(seen) < length: levels.append([j for j in range(length) if j not in seen])
        if len(levels) > 1 and len(levels[-1]) < len(levels[-2]): levels[-2:] = [sorted(levels[-2] + levels[-1])]
        due = []
        for r, level in enumerate(levels):
            due += [b + j for j in level if b + j < len(x)]
            q = distributions(model, x)
            now = [j for j in due if q[j].max() >= threshold or r == len(levels) - 1]
            for j in now: x[j] = q[j].argmax()
            due = [j for j in due if j not in now]
    return x

@pytest.mark.parametrize('seed', SEEDS)
def test_fast_dllm_eb_and_dus_are_their_loops(seed):
    model = Tiny(11, 5, seed=seed)
    for P, level in itertools.product((0, 3), (.3, .6, 1.)):
        x = prompts(model, P)
        s, (want, n) = sample(model, fast_dllm(level, 4), 1, prompt=x), confident(model, x[0], 4, level)
        assert torch.equal(s.tokens[0], want) and s.n_forward[0] == n
        rates = dict(entropy=lambda q: -ent(q), confidence=lambda q: q.max().item(),
                     margin=lambda q: -q.topk(2).values.diff().item())
        for name, rate in rates.items():
            s = sample(model, eb(level * 4, name, temperature=0.), 1, prompt=x)
            want, n = bounded(model, x[0], level * 4, rate)
            assert torch.equal(s.tokens[0], want) and s.n_forward[0] == n, (name, level)
        for length, base in ((4, 2), (5, 2), (8, 3), (11, 2)):
            got = sample(model, dus(base, length, level), 1, prompt=x).tokens[0]
            assert torch.equal(got, spaced(model, x[0], length, level, base)), (length, base)

@pytest.mark.parametrize(
    'rule', [eb(0.), eb(0., 'margin'), eb(0., 'confidence')], ids=['eb', 'eb margin', 'eb confidence']
)
def test_orders_by_the_state_are_exact(rule, joint3):
    got = drawn(joint3, rule, 3)
    assert chi2(got, joint_of(joint3)) > ACCEPT and chi2(got, planted(joint_of(joint3))) < REJECT

@pytest.mark.parametrize('rule', [fast_dllm(1., None, 1.)], ids=['fast-dllm'])
def test_orders_by_the_token_are_not(rule, joint3): assert chi2(drawn(joint3, rule, 3), joint_of(joint3)) < REJECT

@given(
    hs.integers(0, 200),
    hs.sampled_from([0., .05, .2, .5, 1., math.inf]),
    hs.sampled_from(['entropy', 'confidence', 'margin']),
)
def test_ebs_guarantee(seed, gamma, order):
    "KL(p || sampler) is the sum of the expected total correlations, at most gamma a step: over every text"
    model = random_joint(3, 2, seed=seed, floor=.02)
    p, M = joint_of(model), model.mask_id
    rule = eb(gamma, order)
    x = model.outcomes
    # one noise for all: the rule is a function of the state
    st = State.start(torch.full_like(x, M), M, 3, Noise(0, torch.zeros(len(x), dtype=torch.int64)))
    lost = torch.zeros(len(x), dtype=torch.float64)
    visible = lambda r: sum(w for y, w in p.items() if all(v in (M, t) for v, t in zip(r, y)))
    match = lambda a: torch.tensor([visible(r) for r in a.tolist()], dtype=torch.float64)
    steps = torch.zeros(len(x), dtype=torch.float64)
    while st.masked.any():
        steps += st.masked.any(1)
        seen = Pass(model, st)
        where = pick('unmask', rule.unmask, st, seen, st.masked)
        assert (where.any(1) == st.masked.any(1)).all()
        after = torch.where(where, x, st.x)
        tokens = seen.logits(where).log_softmax(-1).gather(1, x[where][:, None])[:, 0]
        lost += (match(after) / match(st.x)).log()
        lost = lost.index_add(0, where.nonzero()[:, 0], tokens.double(), alpha=-1)
        st = replace(st, x=after, i=st.i + 1)
    w = torch.tensor(list(p.values()), dtype=torch.float64)
    assert -1e-12 <= (w * lost).sum() <= gamma * (w * steps).sum() + 1e-12
    if gamma == math.inf: assert (steps == 1).all()

def test_threshold_one_is_low_confidence_with_a_step_a_token():
    model = Tiny(12, 5)
    for length in (12, 4, 1):
        assert torch.equal(
            sample(model, fast_dllm(1., length, 1.), 1, 20).tokens,
            sample(model, 'llada-low-confidence', 12, 20, temperature=1., block_length=length).tokens,
        )
    x = prompts(model, 0, 4, 8)
    ragged = sample(model, fast_dllm(1., 4), 1, 3, prompt=x)
    assert ragged.n_forward.tolist() == [12, 8, 4]
    for b in range(3): assert torch.equal(ragged.tokens[b], low_confidence(model, x[b], 12 - 4 * b, 4))

def test_a_tiny_threshold_is_a_pass_a_block():
    model = Tiny(12, 5)
    assert sample(model, fast_dllm(1e-9, 4), 1).n_forward[0] == 3
    assert sample(model, fast_dllm(1e-9, None), 1).n_forward[0] == 1

class Fixed(Forward):
    "A forward with given distributions [B, L, V], and the model that gives it"
    def __init__(self, q): self.q = q
    def logits(self, where): return self.q[where].log()
    def __call__(self, x): return self

def test_ebs_prefix_is_of_masks_only_and_each_rows_own():
    sure, coin, four = ([a, *[(1 - a) / 3] * 3] for a in (1 - 1e-12, .7, .25))
    q = torch.tensor([[coin, coin, four, coin], [coin, coin, sure, sure]], dtype=torch.float64)
    st = state([[1, 0, 1, 1], [1, 1, 1, 1]], mask_id=4)
    bound, p = excess(negentropy(drawer()), drawer()), Pass(Fixed(q), st)
    score = bound(st, p, st.masked)
    h = -sum(a * math.log(a) for a in coin)
    assert score[0, 1].isnan()
    assert torch.allclose(score[0][[0, 2, 3]].sort().values, torch.tensor([-2 * h, -h, 0.], dtype=torch.float64))
    picked = AtLeast(bound, -h / 2)(st, p, st.masked)
    # both sure ones, and one coin: its row's own count
    assert picked[0].sum() == 1
    assert picked[1].tolist().count(True) == 3
    clean_too = bound(st, p, torch.ones_like(st.masked))
    assert not torch.allclose(clean_too.nan_to_num(), score.nan_to_num())

@given(hs.integers(2, 70), hs.integers(2, 6))
def test_levels_partition_a_block(length, base):
    if base > length: return
    level = dilated(length, base)
    sizes = [level.count(r) for r in range(max(level) + 1)]
    assert sum(sizes) == length and min(sizes) > 0 and level[0] == 0
    assert len(sizes) == 1 or sizes[-1] >= sizes[-2]
    if round(math.log(length, base), 9) % 1 == 0:
        assert len(sizes) == round(math.log(length, base)) and (length <= base or sizes[0] == base)

def test_dus_steps_ranks_and_short_blocks():
    model = Tiny(12, 5)
    rule = dus(2, 8, 0.)
    x = prompts(model, 0, 4, 9)
    s = sample(model, rule, 1, 3, prompt=x, trace=True)
    # 8 + 4, 8 and 3 free positions: a short block still has the strides 4, 2, 1
    assert s.n_steps == 6
    assert s.n_forward.tolist() == [6, 3, 3]
    first = lambda b: s.trace.unmasked[:, b].int().argmax(0)[int((x[b] != model.mask_id).sum()):].tolist()
    assert first(1) == [0, 2, 1, 2, 0, 2, 1, 2] and first(0)[:8] == first(1)

# ---- klass

def klass_loop(model, x, length, tau, near, H):
    "KLASS's loop: one row, full distributions of every pass"
    x, P, n, past = x.clone(), int((x != model.mask_id).sum()), 0, []
    for b in range(P, len(x), length):
        age = 0
        while (x[b:b + length] == model.mask_id).any():
            past.append(distributions64(model, x))
            q, age, n = past[-1], age + 1, n + 1
            here = [j for j in q if j < b + length]
            def moved(j, h):
                if len(past) < h + 2: return math.inf
                return sum(a * math.log(a / c) for a, c in zip(past[-h - 1][j], past[-h - 2][j]) if a > 0)
            sure = [j for j in here if max(q[j]) > tau and age >= H and all(moved(j, h) < near for h in range(H))]
            for j in sure or top({j: max(q[j]) for j in here}, 1): x[j] = q[j].index(max(q[j]))
    return x, n

def distributions64(model, x):
    masked = x == model.mask_id
    q = model(x[None]).logits(masked[None]).double().softmax(-1)
    return dict(zip(masked.nonzero().flatten().tolist(), q.tolist()))

class Sharp(Tiny):
    "`Tiny`, much surer of its tokens"
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.W = 2 * self.W

@given(hs.integers(0, 60), hs.sampled_from([(0, 11), (3, 4), (2, 6)]), hs.sampled_from([.2, .4, .6, .9]),
       hs.sampled_from([1e-3, .02, .1, 1., 20.]), hs.integers(1, 3))
def test_klass_is_its_loop(seed, shape, tau, near, H):
    (P, length), model = shape, Sharp(11, 5, seed=seed)
    x = prompts(model, P)
    out = sample(model, klass(tau, near, H, length), 1, prompt=x)
    want, n = klass_loop(model, x[0], length, tau, near, H)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

def test_klass_in_the_loop_takes_several_at_once():
    "That test would say little if every step were the fallback's"
    loop = lambda m, H: klass_loop(m, prompts(m, 0)[0], 11, .4, .1, H)[1]
    runs = [loop(Sharp(11, 5, seed=s), H) for s in range(20) for H in (1, 2)]
    assert sum(n < 11 for n in runs) > 15 and len(set(runs)) > 4

def test_rows_of_a_batch_have_their_own_history():
    "Rows with several prompts are in other blocks, and some are done: each goes as it does alone"
    model = Sharp(11, 5, seed=3)
    x = prompts(model, 0, 9, 4, 1)
    together = sample(model, klass(.4, .1, 2, 4), 1, 4, seed=2, prompt=x)
    for b in range(4):
        st = State.start(x[b:b + 1], 5, 11, Noise(2, torch.tensor([b])))
        for _ in range(11): st = step(klass(.4, .1, 2, 4), st, model)
        assert torch.equal(st.x[0], together.tokens[b]) and st.n_forward[0] == together.n_forward[b]

def test_what_a_row_remembers_goes_with_the_row():
    model = Sharp(6, 5)
    st = State.start(prompts(model, 0, 2, 5), 5, 6, Noise(0, torch.arange(3)))
    st = step(klass(.9, .1, 2, None), st, model)
    assert set(st.memory) == {'logits', 'place', 'sure', 'kl', 'block', 'age'}
    assert all(len(v) == 3 for v in st.memory.values())
    kept = st.memory['logits'].clone()
    rest = st[torch.tensor([True, False, True])]
    assert torch.equal(rest.memory['kl'], st.memory['kl'][[0, 2]])
    step(klass(.9, .1, 2, None), st, model)
    assert torch.equal(st.memory['logits'], kept)                       # nothing edits what it was handed

def test_no_more_than_two_blocks_are_asked_or_remembered():
    "or a text of 1024 positions and 126,000 words would keep half a gigabyte"
    model = Sharp(24, 5, seed=1)
    st = State.start(prompts(model, 0, 2, 5), 5, 24, Noise(0, torch.arange(3)))
    for _ in range(24):
        model.asked = []
        st = step(klass(.4, .1, 2, 4), st, model)
        assert st.memory['logits'].shape[1] <= 8 and max(model.asked, default=0) <= 3 * 8
    assert not st.masked.any()

def test_a_large_vocabulary_is_computed_once_and_in_portions(monkeypatch):
    import navira.core, navira.scores
    model = Sharp(12, 5, seed=1)
    plain = sample(model, klass(.4, .1, 2, None), 1, 3, prompt=prompts(model, 0, 1, 5))
    asked, model.asked = sum(model.asked), []
    thirds = torch.arange(12) % 3 == torch.arange(3)[:, None]
    small = lambda model, where, most=0: [where & third for third in thirds if (where & third).any()]
    for module in (navira.core, navira.scores): monkeypatch.setattr(module, 'portions', small)
    parts = sample(model, klass(.4, .1, 2, None), 1, 3, prompt=prompts(model, 0, 1, 5))
    assert torch.equal(parts.tokens, plain.tokens) and max(model.asked) <= 12 and sum(model.asked) == asked

def test_its_ends_are_other_rules():
    model = Sharp(9, 5)
    run = lambda rule: sample(model, rule, 9, 40, prompt=prompts(model, 2))
    one = run('llada-low-confidence').tokens
    for rule in (klass(kl=0., block_length=None), klass(threshold=1., block_length=None)):
        assert torch.equal(run(rule).tokens, one) and (run(rule).n_forward == 7).all()
    for tau in (.3, .6):
        a, b = run(klass(tau, math.inf, 1, 4)), run(fast_dllm(tau, 4))
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward)

def test_the_divergence_is_that_of_the_two_distributions():
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(50, 7, generator=g, dtype=torch.float64) for _ in range(2))
    a[:, 3] = b[:, 3] = -torch.inf
    p, q = a.softmax(-1), b.softmax(-1)
    want = torch.where(p > 0, p * (p / q).log(), 0).sum(-1)
    torch.testing.assert_close(divergence(a, b), want, rtol=1e-9, atol=1e-9)
    assert (divergence(a, a) == 0).all() and (divergence(a, b) - divergence(b, a)).abs().min() > 1e-6

@pytest.mark.parametrize('name, kw, parts', [
    ('fast-dllm', dict(threshold=0.), ('threshold=0', '(0, 1]')),
    ('fast-dllm', dict(threshold=1.01), ('threshold=1.01', '(0, 1]')),
    ('klass', dict(threshold=1.2), ('threshold=1.2', '[0, 1]')),
    ('klass', dict(kl=-.1), ('kl=-0.1', '[0, inf]', 'nats')),
    ('klass', dict(history=0), ('history=0', 'at least 1')),
    ('klass', dict(block_length=0), ('block_length=0', 'at least 1')),
    ('eb', dict(gamma=-1.), ('gamma=-1', '[0, inf]', 'nats')),
    ('eb', dict(gamma=math.nan), ('gamma=nan', '[0, inf]')),
    ('dus', dict(threshold=-.5), ('threshold=-0.5', '[0, 1]')),
    ('dus', dict(base=1), ('base=1', 'at least 2')),
    ('dus', dict(block_length=0), ('block_length=0', 'at least 1')),
    ('dus', dict(skip=6), ('skip=6', '2^6', 'at most block_length')),
])
def test_bad_input_names_value_range_and_why(name, kw, parts): refused(name, kw, parts)

def test_a_wrong_order_names_the_nearest():
    with pytest.raises(KeyError, match="did you mean 'entropy'"): eb(order='entropi')

def test_first_hitting_is_backbone_with_a_step_a_token():
    for prompt in (None, torch.tensor([4, 1, 4, 4, 2, 4, 4, 4, 4])):
        free = 9 if prompt is None else 7
        a, b = (sample(Tiny(9, 4), name, free, 20, 2, prompt=prompt, trace=True)
                for name in ('first-hitting', 'backbone'))
        assert torch.equal(a.trace.x, b.trace.x) and a.n_steps == free and (a.n_forward == free).all()
    assert n_steps(policy('first-hitting'), 1, torch.tensor([3, 9, 4])) == 9

def test_first_hitting_gives_the_joint():
    model = random_joint(3, 3, seed=1)
    expected = {tuple(y): p for y, p in zip(model.outcomes.tolist(), model.joint.flatten().tolist())}
    got = counted(sample(model, 'first-hitting', 1, N, batch_size=N, top_p=1.).tokens)
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT
    # two at once
    assert chi2(counted(sample(model, 'backbone', 2, N, batch_size=N, top_p=1.).tokens), expected) < REJECT

@pytest.mark.parametrize('name,hyper,words', [('first-hitting', dict(top_p=1.2), ['top_p=1.2'])])
def test_bad_hyper_parameters_are_refused_when_the_policy_is_built(name, hyper, words):
    with pytest.raises(ValueError) as e: policy(name, **hyper)
    assert all(w in str(e.value) for w in words), str(e.value)
