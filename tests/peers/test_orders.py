"""Orders of unmasking: the authors' loops a second time, distributions, counts, ragged batches, bad input."""
import itertools, math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.core import Policy, TopK, evaluate, random_order
from navira.peers.adaptive import dus, eb
from navira.peers.orders import (
    cosine_counts, dream_counts, dream_entropy, dream_origin, llada_low_confidence, llada_random, maskgit)
from navira.registry import mdlm, policies, policy
from navira.remasking import plackett_luce
from navira.sampling import n_steps, sample
from helpers.orders import (  # noqa: F401
    SEEDS, distributions, drawn, joint3, joint_of, low_confidence, prompts, refused, state, top)
from helpers.peers import N
from toys import ACCEPT, REJECT, Tiny, chi2, counted, planted, random_joint, small_lm

ORDERS = [
    'llada-random', 'llada-low-confidence', 'dream-origin', 'dream-maskgit-plus',
    'dream-topk-margin', 'dream-entropy', 'maskgit',
]
OWN = ['fast-dllm', 'eb', 'dus']
SMALL = {'fast-dllm': dict(block_length=3), 'dus': dict(block_length=4)}
GREEDY = {'llada-random': dict(temperature=1.), 'llada-low-confidence': dict(temperature=1.)} | SMALL

# ---- Every one of them

def test_all_are_registered_with_their_row_of_the_table():
    from navira.registry import _about
    for name in ORDERS + OWN:
        assert set(_about[name]) == {'scores', 'selects', 'never', 'exact', 'source'} and name in policies()
        assert policy(name).matched == (name in ORDERS) and policy(name).passes == 1

@pytest.mark.parametrize('name', ORDERS + OWN)
def test_a_row_does_not_depend_on_its_batch(name):
    model = Tiny(9, 5)
    x = prompts(model, 0, 1, 5, 8, 3)
    kw = GREEDY.get(name, {})
    together = sample(model, name, 6, 5, seed=3, prompt=x, batch_size=5, **kw)
    assert (together.tokens != model.mask_id).all()
    assert (together.tokens[x != model.mask_id] == x[x != model.mask_id]).all()
    for b in range(5):
        alone = sample(model, name, 6, range(b, b + 1), seed=3, prompt=x[b], **kw)
        assert torch.equal(alone.tokens[0], together.tokens[b]) and alone.n_forward[0] == together.n_forward[b], b

@hs.composite
def runs(draw):
    name = draw(hs.sampled_from(ORDERS + OWN))
    L, n = draw(hs.integers(1, 10)), draw(hs.integers(1, 4))
    lengths = draw(hs.lists(hs.integers(0, L - 1), min_size=n, max_size=n))
    kw = {}
    if name != 'maskgit': kw['temperature'] = draw(hs.sampled_from([0., .3, 1.]))
    if name.startswith('dream-') and name != 'dream-origin': kw['alg_temp'] = draw(hs.sampled_from([0., 1e-3, .4, 50.]))
    if name.startswith('dream'):
        kw |= dict(
            eps=draw(hs.sampled_from([0., 1e-3, .5])),
            top_p=draw(hs.sampled_from([.5, .95, 1.])),
            top_k=draw(hs.sampled_from([None, 1, 2])),
        )
    if name in OWN[::2]:
        kw |= dict(block_length=draw(hs.integers(2, 12)), threshold=draw(hs.sampled_from([1e-9, .3, .7, 1.])))
    if name == 'eb':
        kw |= dict(
            gamma=draw(hs.sampled_from([0., .1, 1., math.inf])),
            order=draw(hs.sampled_from(['entropy', 'confidence', 'margin'])),
        )
    if name == 'maskgit': kw['choice_temperature'] = draw(hs.sampled_from([0., 1., 4.5]))
    return name, L, lengths, draw(hs.integers(1, 13)), draw(hs.integers(0, 99)), kw

@given(runs())
def test_no_mask_is_left_and_nothing_written_ever_changes(r):
    name, L, lengths, budget, seed, kw = r
    model = Tiny(L, 4, seed=seed)
    x = prompts(model, *lengths)
    s = sample(model, name, budget, len(lengths), seed, prompt=x, trace=True, **kw)
    given_ = x != model.mask_id
    assert (s.tokens != model.mask_id).all() and torch.equal(s.tokens[given_], x[given_])
    assert (s.n_forward <= s.n_steps).all() and (s.n_forward >= 1).all() and not s.trace.remasked.any()
    assert (s.trace.unmasked.sum(0) == ~given_).all()                       # each free position is filled once
    filled = s.trace.unmasked.any(2)                                        # [T, n]
    if name in ('eb', 'fast-dllm'): assert (filled.sum(0) == s.n_forward).all()
    if name in ORDERS: assert (filled.sum(0) == s.n_forward).all() and s.n_steps == budget

@given(
    hs.integers(1, 4), hs.integers(1, 4), hs.integers(1, 15),
    hs.lists(hs.integers(0, 3), min_size=1, max_size=3),
    hs.sampled_from(['llada-random', 'llada-low-confidence']),
)
def test_llada_writes_block_after_block_by_its_counts(length, most, T, blocks, name):
    L = length * 4
    blocks = [max(1, min(most, 4 - b)) for b in blocks]
    model = Tiny(L, 4)
    x = prompts(model, *[L - b * length for b in blocks])
    if T < max(blocks):
        with pytest.raises(ValueError, match=f'block_length={length}.*{max(blocks)} steps'):
            sample(model, name, T, len(x), prompt=x, block_length=length)
        return
    s = sample(model, name, T, len(x), prompt=x, block_length=length, trace=True, temperature=1.)
    assert (s.tokens != model.mask_id).all()
    for row, nb in enumerate(blocks):
        when, i = [], 0
        for b in range(nb):                                                 # the authors' loop over blocks
            T_b = len([j for j in range(T) if j * nb // T == b])
            base, rem = divmod(length, T_b)
            when += [i + j for j in range(T_b) for _ in range(base + (j < rem))]
            i += T_b
        steps = s.trace.unmasked[:, row].nonzero()
        assert steps[:, 0].tolist() == when
        assert ((steps[:, 1] - (L - nb * length)) // length).tolist() == [k // length for k in range(nb * length)]

# ---- The authors' loops, once more, on one row and without dice

def dream(model, x, T, rate, eps=1e-3):
    "Dream's loop for one row at temperature 0"
    x, t = x.clone(), torch.linspace(1, eps, T + 1).tolist()
    for i in range(T):
        q = distributions(model, x)
        k = int(len(q) * (1 - t[i + 1] / t[i])) if i < T - 1 else len(q)
        for j in top({j: rate(a) for j, a in q.items()}, k): x[j] = q[j].argmax()
    return x

@pytest.mark.parametrize('seed', SEEDS)
def test_llada_is_the_authors_loop(seed):
    model = Tiny(12, 5, seed=seed)
    for P, T, length in [(0, 12, 12), (0, 4, 12), (0, 5, 12), (0, 6, 4), (4, 4, 4), (0, 9, 4)]:
        x = prompts(model, P)
        got = sample(model, 'llada-low-confidence', T, prompt=x, block_length=length).tokens[0]
        assert torch.equal(got, low_confidence(model, x[0], T, length)), (P, T, length)

@pytest.mark.parametrize('seed', SEEDS)
def test_dream_is_the_authors_loop(seed):
    model = Tiny(11, 5, seed=seed)
    rates = {
        'dream-maskgit-plus': lambda q: q.max(),
        'dream-topk-margin': lambda q: q.topk(2).values.diff().neg(),
        'dream-entropy': lambda q: (q * (q + 1e-10).log()).sum(),
    }
    for (name, rate), P, T in itertools.product(rates.items(), (0, 3), (1, 3, 8, 16)):
        x = prompts(model, P)
        got = sample(model, name, T, prompt=x, temperature=0., top_p=1.).tokens[0]
        assert torch.equal(got, dream(model, x[0], T, rate)), (name, P, T)

@pytest.mark.parametrize('name', ['dream-topk-margin', 'dream-entropy'])
@pytest.mark.parametrize('T', [3, 4, 40])
def test_a_dream_rule_is_exact_with_a_step_a_token_at_eps_0_alone(name, T, joint3):
    from navira.registry import _about
    assert 'eps=0' in _about[name]['exact']
    plain = dict(temperature=1., top_p=1.)
    assert chi2(drawn(joint3, name, T, **plain, eps=0.), joint_of(joint3)) > ACCEPT
    assert chi2(drawn(joint3, name, T, **plain), joint_of(joint3)) < REJECT         # its last step fills two

def test_on_a_network_rows_do_not_mix():
    model = small_lm(1)
    x = prompts(model, 0, 4, 9)
    for name in ORDERS + OWN:
        s = sample(model, name, 3, 3, prompt=x, batch_size=3, **GREEDY.get(name, {}))
        for b in range(3):
            alone = sample(model, name, 3, range(b, b + 1), prompt=x[b], **GREEDY.get(name, {})).tokens[0]
            assert torch.equal(alone, s.tokens[b]), name

# ---- Counts and rates

@given(hs.integers(1, 200), hs.integers(1, 60), hs.sampled_from([0., 1e-3, .3]))
def test_dreams_floor_per_row(n, T, eps):
    left = n
    for i in range(T):
        st = replace(state(torch.arange(200)[None] < left, T, i), fixed=(torch.arange(200) >= n)[None])
        t, s = 1 - (1 - eps) * i / T, 1 - (1 - eps) * (i + 1) / T
        k, want = int(evaluate(dream_counts(eps), st)), left * (1 - s / t) if i < T - 1 else left
        assert k == math.floor(want + 1e-9) or k == math.floor(want - 1e-9)
        left -= k
    assert left == 0

@given(hs.integers(1, 200), hs.integers(1, 60))
def test_maskgits_cosine_per_row(n, T):
    left = n
    for i in range(T):
        st = replace(state(torch.arange(200)[None] < left, T, i), fixed=(torch.arange(200) >= n)[None])
        want = max(1, min(left - 1, math.floor(n * math.cos(math.pi / 2 * (i + 1) / T)))) if i < T - 1 else 0
        k = int(evaluate(cosine_counts, st))
        assert left - k == (want if left else 0) or left == 1 and k == 0
        left -= k
    assert left == 0

@pytest.mark.parametrize('T, i, eps', [(4, 0, 1e-3), (10, 7, 1e-3), (10, 7, .4), (10, 3, 0.), (3, 2, .9)])
def test_origin_fills_at_its_rate(T, i, eps):
    st = state(torch.ones(N // 10, 10), T, i)
    hits = int(dream_origin(eps=eps).unmask(st, None, st.masked).sum())
    rate = 1. if i == T - 1 else (1 - eps) / T / (1 - (1 - eps) * i / T)
    if rate == 1:
        assert hits == N
    else:
        got = dict(o=hits, c=N - hits)
        assert chi2(got, dict(o=rate, c=1 - rate)) > ACCEPT
        assert chi2(got, dict(o=rate * .9, c=1 - rate * .9)) < REJECT

@pytest.mark.parametrize('a', [.2, 1., 7.])
def test_two_positions_at_alg_temp_are_plackett_luce(a):
    rate = torch.tensor([-.1, -.9, -1.2, -.4], dtype=torch.float64)
    st = state(torch.ones(N, 4))
    rule = replace(dream_entropy(alg_temp=a).unmask, score=lambda *_: rate.expand(N, 4), k=2)
    got = counted(torch.stack([torch.nonzero(r).flatten() for r in rule(st, None, st.masked)]))
    expected = {s: plackett_luce((rate / a).exp(), s) for s in itertools.combinations(range(4), 2)}
    assert chi2(got, expected) > ACCEPT and chi2(got, planted(expected)) < REJECT

# ---- Distributions

@pytest.mark.parametrize(
    'rule',
    [
        llada_random(1., 1), llada_random(1., 3),
        dream_entropy(1., 1., eps=0.),
        dream_entropy(1., 1., eps=0., alg_temp=.3),
    ],
    ids=['blocks of one', 'one block', 'entropy', 'entropy with noise'],
)
def test_orders_by_the_state_are_exact(rule, joint3):
    got = drawn(joint3, rule, 3)
    assert chi2(got, joint_of(joint3)) > ACCEPT and chi2(got, planted(joint_of(joint3))) < REJECT

@pytest.mark.parametrize('rule', [llada_low_confidence(1.), maskgit(0.)], ids=['low-confidence', 'maskgit'])
def test_orders_by_the_token_are_not(rule, joint3): assert chi2(drawn(joint3, rule, 3), joint_of(joint3)) < REJECT

def test_in_blocks_a_prompt_conditions(joint3):
    given_ = {y: p for y, p in joint_of(joint3).items() if y[1] == 2}
    got = drawn(joint3, llada_random(1., 1), 2, prompt=torch.tensor([3, 2, 3]))
    assert chi2(got, {y: p / sum(given_.values()) for y, p in given_.items()}) > ACCEPT

# ---- Reductions

@pytest.mark.parametrize('name', ['llada-random', 'llada-low-confidence'])
def test_one_block_is_no_block(name):
    model = Tiny(12, 5)
    for T in (1, 5, 12, 20):
        assert torch.equal(*(sample(model, name, T, 20, temperature=1., block_length=b).tokens for b in (None, 12)))

def test_llada_random_is_the_backbone_if_steps_divide():
    model = Tiny(12, 5)
    for T in (1, 2, 3, 4, 6, 12):
        assert torch.equal(
            sample(model, 'llada-random', T, 20, temperature=1.).tokens,
            sample(model, 'backbone', T, 20, top_p=1.).tokens,
        )
    uneven = sample(model, 'llada-random', 5, 20, temperature=1.).tokens
    assert not torch.equal(uneven, sample(model, 'backbone', 5, 20, top_p=1.).tokens)

def test_alg_temp_from_greedy_to_uniform():
    # no nucleus: one that keeps a single token makes rates tie at 1
    model = Tiny(12, 5)
    for name in ('dream-maskgit-plus', 'dream-topk-margin', 'dream-entropy'):
        a, b, c, d = (sample(model, policies()[name](1., 1., alg_temp=t), 5, 20).tokens for t in (0., 1e-9, None, 3.))
        assert torch.equal(a, b) and torch.equal(a, c) and not torch.equal(a, d)

def test_dream_origin_is_mdlm_on_the_whole_clock():
    model = Tiny(12, 5)
    for T in (1, 4, 12, 30):
        assert torch.equal(
            sample(model, dream_origin(1., 1., eps=0.), T, 20).tokens, sample(model, mdlm(1.), T, 20).tokens
        )

def test_without_temperature_there_is_one_text():
    model = Tiny(12, 5)
    for name in ('llada-low-confidence', 'fast-dllm', 'dus'):
        assert len(sample(model, name, 6, 20).tokens.unique(dim=0)) == 1
    for name in ('dream-maskgit-plus', 'dream-topk-margin', 'dream-entropy', 'eb'):
        assert len(sample(model, name, 6, 20, temperature=0.).tokens.unique(dim=0)) == 1
    assert len(sample(model, 'llada-low-confidence', 6, 20, temperature=1.).tokens.unique(dim=0)) > 1

# ---- Naive forms

def test_a_count_for_the_whole_batch_breaks_a_ragged_one():
    st = state([[0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0]], T=2, i=1)
    mean = int(st.masked.sum(1).double().mean())
    # surplus picks in the one, masks left in the other
    assert mean > st.masked[0].sum()
    assert mean < st.masked[1].sum()
    assert TopK(random_order, dream_counts())(st, None, st.masked).sum(1).tolist() == [1, 5]

# ---- What users may get wrong

@pytest.mark.parametrize('name, kw, parts', [
    ('llada-random', dict(temperature=-1.), ('temperature=-1', 'at least 0')),
    ('llada-random', dict(block_length=0), ('block_length=0', 'at least 1')),
    ('llada-low-confidence', dict(block_length=2.5), ('block_length=2.5', 'whole number')),
    ('llada-low-confidence', dict(block_length=5), ('block_length=5', 'divide the 12 free positions', 'is 4')),
    ('llada-low-confidence', dict(block_length=1), ('12 blocks', 'at least 12 steps')),
    ('dream-origin', dict(eps=1.), ('eps=1.0', '[0, 1)')),
    ('dream-origin', dict(top_p=0.), ('top_p=0', '(0, 1]')),
    ('dream-entropy', dict(alg_temp=-.1), ('alg_temp=-0.1', '[0, ')),
    ('dream-entropy', dict(alg_temp=math.nan), ('alg_temp=nan', '[0, ')),
    ('dream-topk-margin', dict(top_k=0), ('top_k=0', 'at least 1')),
    ('maskgit', dict(choice_temperature=math.inf), ('choice_temperature=inf', '[0, inf)')),
])
def test_bad_input_names_value_range_and_why(name, kw, parts): refused(name, kw, parts)

def test_steps_are_known_before_any_pass():
    free = torch.tensor([10, 33])
    assert [n_steps(policy(n), 7, free) for n in OWN] == [33, 33, 10]
    assert [n_steps(policy(n), 7, free) for n in ORDERS] == [7] * 7
    assert n_steps(dus(block_length=8), 7, free) == 15 and eb().matched is False and isinstance(eb(), Policy)

# ---- A network that predicts the next token (Dream's convention): the shift belongs to its `Forward`

class NextToken:
    "The exact joint behind Dream's outputs: output j is the distribution at position j + 1. `shift` puts it back."
    def __init__(self, joint, shift):
        self.joint, self.shift, self.mask_id, self.length = joint, shift, joint.mask_id, joint.length
    def __call__(self, x):
        p = self.joint(x)
        outputs = self.joint.table[self.joint.state(x)].roll(-1, 1)
        q = outputs.roll(1, 1) if self.shift else outputs
        p.logits = lambda where: q[where].log()
        return p


@pytest.mark.parametrize('name', ['dream-entropy', 'dream-topk-margin', 'backbone'])
def test_shift_by_one(name):
    "With a given first token, as Dream has, shifted outputs sample the conditional joint; as they are they do not"
    joint, n = random_joint(3, 3, seed=4), 50_000
    expected = {y: p for y, p in zip(map(tuple, joint.outcomes.tolist()), joint.joint.flatten().tolist()) if y[0] == 1}
    expected = {y: p / sum(expected.values()) for y, p in expected.items()}
    hyper = dict(top_p=1.) if name == 'backbone' else dict(temperature=1., top_p=1., eps=0.)
    run = lambda shift: counted(
        sample(NextToken(joint, shift), name, 2, n, prompt=torch.tensor([1, 3, 3]), batch_size=n, **hyper).tokens
    )
    right, wrong = run(True), run(False)
    assert chi2(right, expected) > ACCEPT and chi2(wrong, expected) < REJECT
