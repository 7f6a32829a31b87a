"""PRISM and LLaDA with a loop at the end: what a step gives, and what it costs. The best of several texts."""
import itertools, math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as hs

from navira.base.noise import Noise
from navira.core import State, step, TopK, n_unmask, random_order, Policy
from navira.diffusion import drawer
from navira.peers.loops import BestOf, looping
from navira.registry import policy
from navira.sampling import n_steps, sample
from helpers.peers import N, state
from helpers.revisers import Raw, conditional, joint4, kernel_row, tv  # noqa: F401
from helpers.sample_api import says
from toys import ACCEPT, REJECT, Tiny, chi2, counted, planted, random_joint, small_lm

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

# ---- tolerator

def filled_by_llada(model, x, T):
    "LLaDA's low-confidence sampler at temperature 0, for one row"
    x, n = x.clone(), int((x == model.mask_id).sum())
    for i in range(T):
        masked = x == model.mask_id
        q = model(x[None]).logits(masked[None]).double().softmax(-1).max(-1)
        for j in q.values.argsort(descending=True)[:n // T + (i < n % T)].tolist():
            x[masked.nonzero()[j, 0]] = q.indices[j]
    return x

def redecoded(model, x, free, T0, M, start, end, patience, temperature, seed):
    "Tolerator's loop for one row: ids, passes, positions locked at the end"
    x, noise, draw = x.clone(), Noise(seed, torch.tensor([0])), drawer(temperature)
    last, streak, n = {}, dict.fromkeys(free, 0), 0
    for j in range(M):
        r = end + (start - end) * .5 * (1 + math.cos(math.pi * j / (M - 1))) if M > 1 else end
        there = [k for k in free if streak[k] < patience]
        u = {name: noise.uniform(T0 + j, name, len(x))[0] for name in ('pick', 'token')}
        gone = sorted(there, key=lambda k: u['pick'][k])[math.floor(len(there) * (1 - r) + 1e-9):]
        if not gone: continue
        y, where = x.clone(), torch.zeros(1, len(x), dtype=torch.bool)
        y[gone], where[0, gone], n = model.mask_id, True, n + 1
        tokens, _ = draw(model(y[None]).logits(where), u['token'][where[0]])
        for k, v in zip(where[0].nonzero()[:, 0].tolist(), tokens.tolist()):
            streak[k] = streak[k] + 1 if last.get(k) == v else 1
            x[k] = last[k] = v
    return x, n, [k for k in free if streak[k] >= patience]

how = hs.fixed_dictionaries(dict(start=hs.sampled_from([0., .3, .8, 1.]), end=hs.sampled_from([0., .4, 1.]),
                                 patience=hs.integers(1, 4)))
@given(hs.integers(0, 60), hs.integers(0, 4), hs.integers(1, 6), hs.integers(0, 8), how, hs.sampled_from([0., .3, 1.]))
def test_tolerator_is_its_loop(seed, P, T0, M, hyper, temperature):
    model = Tiny(9, 5, seed=seed)
    x = torch.full((1, 9), 5)
    x[0, torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:P]] = torch.arange(P)
    out = sample(model, 'tolerator', T0 + M, 1, seed, prompt=x, loop_steps=M, temperature=0., **hyper,
                 loop_temperature=temperature)
    draft = filled_by_llada(model, x[0], T0)
    free = (x[0] == 5).nonzero()[:, 0].tolist()
    want, n, _ = redecoded(model, draft, free, T0, M, **hyper, temperature=temperature, seed=seed)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n + min(T0, len(free))

def test_that_loop_locks_and_changes():
    draft = lambda m: filled_by_llada(m, torch.full((9,), 5), 3)
    models = [Tiny(9, 5, seed=s) for s in range(12)]
    runs = [redecoded(m, draft(m), range(9), 3, 8, .8, .4, 2, .3, 0) for m in models]
    assert sum(bool(locked) for _, _, locked in runs) > 3 and sum(n < 8 for _, n, _ in runs) >= 1

def test_a_loop_step_of_tolerator_has_its_row(joint4):
    "Half of four positions at random, from the cleaned text, drawn as a product at temperature 1"
    x = (1, 0, 0, 1)
    half = {S: 1 / 6 for S in itertools.combinations(range(4), 2)}
    rule = policy('tolerator', loop_steps=1, start=.5, end=.5, loop_temperature=1.)
    got, expected = step(rule, state(x, 2, 3, 4, N, seed=5), joint4), kernel_row(joint4, x, half, clean=True)
    assert chi2(counted(got.x), expected) > ACCEPT and chi2(counted(got.x), planted(expected)) < REJECT
    assert (got.n_forward == 1).all()
    assert chi2(counted(got.x), kernel_row(joint4, x, half, clean=False)) < REJECT

def test_without_a_loop_it_is_llada_and_a_loop_that_remasks_nothing_is_free():
    model = Raw(9, 4)
    llada = sample(model, 'llada-low-confidence', 5, 30, temperature=.5).tokens
    assert torch.equal(sample(model, 'tolerator', 5, 30, loop_steps=0).tokens, llada)
    idle = sample(model, 'tolerator', 11, 30, loop_steps=6, start=0., end=0.)
    assert torch.equal(idle.tokens, llada) and (idle.n_forward == 5).all()

def test_half_of_a_budget_is_the_loop():
    model = Raw(9, 4)
    for budget in range(1, 12):
        out = sample(model, 'tolerator', budget, 3, trace=True, patience=None, start=1., end=1.)
        assert out.n_steps == budget and (out.n_forward == budget).all()
        whole = (out.trace.x != 4).all(2).all(1).tolist()
        assert whole.index(True) == budget - budget // 2                # the text is finished there, not before

def test_rows_lock_by_themselves():
    "With prompts of several lengths each row goes as it does alone"
    model, rule = Tiny(9, 5, seed=4), policy('tolerator', patience=2)
    x = torch.full((3, 9), 5)
    x[1, :3], x[2, 2:8] = torch.arange(3), torch.arange(6) % 5
    together = sample(model, rule, 16, 3, seed=3, prompt=x)
    for b in range(3):
        st = State.start(x[b:b + 1], 5, 16, Noise(3, torch.tensor([b])))
        for _ in range(16): st = step(rule, st, model)
        assert torch.equal(st.x[0], together.tokens[b]) and st.n_forward[0] == together.n_forward[b]
    assert together.n_forward.min() < 16

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'prism-loop', dict(loop_steps=-1), 'loop_steps=-1'),
        (ValueError, 'prism-loop', dict(n_remask_loop=1.5), 'n_remask_loop=1.5'),
        (KeyError, 'prism-loop', dict(score='haed'), "did you mean 'head'"),
        (ValueError, 'prism-loop', dict(on=0.6, off=0.5), 'on=0.6'),
        (ValueError, 'prism-loop', dict(eta=2.), 'eta=2'),
        (ValueError, 'tolerator', dict(loop_steps=-1), 'loop_steps=-1'),
        (ValueError, 'tolerator', dict(start=1.2), 'start=1.2'),
        (ValueError, 'tolerator', dict(end=-.1), 'end=-0.1'),
        (ValueError, 'tolerator', dict(patience=0), 'patience=0'),
        (ValueError, 'tolerator', dict(temperature=-1.), 'temperature=-1'),
        (ValueError, 'tolerator', dict(loop_temperature=-1.), 'loop_temperature=-1'),
    ],
)
def test_bad_input_is_named_when_the_policy_is_built(error, name, hyper, text):
    with pytest.raises(error) as e: policy(name, **hyper)
    assert text in str(e.value)

# --- the best of several ----------------------------------------------------------------------------------------------
BASES = 'backbone', 'prism', 'navira-onepass', 'mask-predict'

class Renamed(Noise):
    "Numbers for other purposes"
    def __init__(self, seed, samples, draft): super().__init__(seed, samples); self.draft = draft
    def uniform(self, i, purpose, length):
        return super().uniform(i, purpose + (f', draft {self.draft}' if self.draft else ''), length)

def one_by_one(model, base, n, rated, x, budget, seed):
    """The best drafts of each row, several where they are tied, and passes in all: the drafts are written one after the
    other, by loops over rows"""
    rule = policy(base, top_p=.9, **(dict(temperature=1.) if base == 'mask-predict' else {}))
    tokens, passes = [], []
    for b in range(len(x)):
        found, ran = [], 0
        for j in range(n):
            st = State.start(x[b:b + 1], model.mask_id, budget // n - rated, Renamed(seed, torch.tensor([b]), j))
            for _ in range(st.n): st = step(rule, st, model)
            free, ran = ~st.fixed[0], ran + int(st.n_forward) + rated
            good = model(st.x).quality().sigmoid()[0] if rated else st.conf[0]
            found.append((good[free].double().mean().item(), st.x[0].tolist()))
        best = max(found)[0]
        tokens.append([y for good, y in found if good > best - 1e-9]); passes.append(ran)
    return tokens, passes

@settings(max_examples=16)
@given(hs.sampled_from(BASES), hs.integers(1, 4), hs.booleans(), hs.integers(0, 40), hs.integers(0, 7), hs.booleans())
def test_it_is_the_best_of_texts_written_one_by_one(base, n, rated, seed, more, tiny):
    model = Tiny(9, 6, seed=seed) if tiny else small_lm(seed).double()
    x = torch.full((3, model.length), model.mask_id)
    x[1, [0, 3]], x[2, 1:7] = 1, 2
    budget = n * (1 + rated) + more
    out = sample(model, 'best-of', budget, prompt=x, seed=seed, base=base, drafts=n,
                 score='quality' if rated else 'confidence')
    tokens, passes = one_by_one(model, base, n, rated, x, budget, seed)
    assert all(y in best for y, best in zip(out.tokens.tolist(), tokens)) and out.n_forward.tolist() == passes
    assert max(passes) <= budget and out.n_steps == budget // n

def test_two_ratings_keep_different_texts():
    "Or the test above could not tell them apart"
    model = small_lm(3).double()
    how = dict(n=40, seed=1, drafts=4)
    kept = [sample(model, 'best-of', 4 * T, score=s, **how).tokens for T, s in ((6, 'confidence'), (7, 'quality'))]
    first = sample(model, 'backbone', 6, 40, seed=1).tokens
    for a, b in itertools.combinations([*kept, first], 2): assert 8 < (a != b).any(1).sum() < 39

@pytest.mark.parametrize('n', [2, 3])
def test_the_best_of_texts_of_a_joint_has_its_distribution(n):
    "The best by a score of whole texts: P(s <= s(x))^n - P(s < s(x))^n"
    joint = random_joint(3, 3, seed=1, floor=.1)
    texts, pi = joint.outcomes.tolist(), joint.joint.flatten().tolist()
    score = [sum(joint.given(y)[j][y[j]] for j in range(3)) for y in texts]
    below = lambda a: sum(q for q, s in zip(pi, score) if s < a)
    dist = {tuple(y): (below(s) + q) ** n - below(s) ** n for y, q, s in zip(texts, pi, score)}
    got = counted(sample(joint, 'best-of', 4 * n, 10_000, batch_size=10_000, seed=5, drafts=n,
                         score='quality', top_p=1.).tokens)
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT

@pytest.mark.parametrize('base', BASES)
@pytest.mark.parametrize('score', ['confidence', 'quality'])
def test_trace_and_stream_tell_a_run(base, score):
    "The first draft is shown, then the one that is kept; what changes is told, a prompt stays"
    model, seen = small_lm(2).double(), []
    x = torch.full((5, 12), model.mask_id)
    x[:, [0, 7]] = 3
    how = dict(prompt=x, seed=3, base=base, drafts=3, score=score)
    out = sample(model, 'best-of', 13, trace=True, progress=seen.extend, batch_size=2, **how)
    t, T = out.trace, out.n_steps
    hot = dict(temperature=1., top_p=.9) if base == 'mask-predict' else {}
    first = sample(model, base, T - (score == 'quality'), prompt=x, seed=3, trace=True, **hot).trace
    assert torch.equal(t.x[:T], first.x[:T]) and torch.equal(t.x[-1].long(), out.tokens)
    for k in ('remasked', 'unmasked'): assert torch.equal(getattr(t, k)[:T - 1], getattr(first, k)[:T - 1])
    for a, b, gone, new in zip(t.x, t.x[1:], t.remasked, t.unmasked):
        assert torch.equal(new | (gone & (b == model.mask_id)), (a != b) | (gone & new))
        assert not (gone | new)[:, [0, 7]].any() and (gone & new <= (a != b)).all() or base == 'mask-predict'
    assert (t.x[-1] != first.x[-1]).any() and T == 4
    assert [p.ids for p in seen if p.final == 12] == out.tokens.tolist()
    alone = sample(model, 'best-of', 13, range(4, 5), **how | dict(prompt=x[4]))
    assert torch.equal(alone.tokens[0], out.tokens[4]) and alone.n_forward[0] == out.n_forward[4]

def test_a_base_keeps_what_it_remembers():
    "Each draft its own"
    plain = Policy(unmask=TopK(random_order, n_unmask))
    def counting(rule, st, model, watch):
        had = st.memory.get('x', torch.zeros(len(st.x), 2, dtype=torch.long))       # a name that drafts have too
        out = step(plain, st, model, watch)
        return out.remember(x=had + torch.stack([out.x[:, 0], torch.ones_like(out.x[:, 0])], 1))
    own = BestOf(replace(plain, step=counting), 3, False)
    rule, model = replace(plain, cost=3, steps=own.steps, step=own), Tiny(5, 4)
    st = State.start(torch.full((2, 5), 4), 4, n_steps(rule, 12, torch.tensor([5, 5])), Noise(0, torch.arange(2)))
    for _ in range(st.n): st = step(rule, st, model)
    drafts = st.memory['draft its x']
    assert drafts.shape == (2, 3, 2) and (drafts[..., 1] == 4).all() and drafts[..., 0].unique().numel() > 1
    some = st[torch.tensor([False, True])]
    assert torch.equal(some.memory['draft x'], st.memory['draft x'][1:])

def test_blocks_keep_the_best_of_each():
    model = Tiny(9, 5)
    out = sample(model, 'best-of', 24, n=3, block_length=3, drafts=2, score='quality', seed=1, trace=True)
    assert out.n_steps == 12 and (out.n_forward == 24).all()
    for b, x in enumerate(out.trace.x[4::4]): assert torch.equal(x[:, :3 * b + 3].long(), out.tokens[:, :3 * b + 3])
    with says(ValueError, 'budget=15', '3 blocks of 3 positions need at least 18', 'block_length of at least 5'):
        sample(model, 'best-of', 15, block_length=3, drafts=3, score='quality')

def test_too_small_a_budget_is_told_the_least_before_any_pass():
    model = Tiny(6, 4)
    for kw, least in ((dict(), 4), (dict(score='quality'), 8), (dict(drafts=7, score='quality'), 14)):
        with says(ValueError, f'budget={least - 1}', 'drafts', f'at least {least}'):
            sample(model, 'best-of', least - 1, **kw)
        assert not model.rows
        assert sample(model, 'best-of', least, n=2, **kw).n_forward.tolist() == [least] * 2
        model.rows.clear()
    for kw, parts in ((dict(drafts=0), ['drafts=0']), (dict(drafts=1.5), ['drafts=1.5'])):
        with says(ValueError, *parts): policy('best-of', **kw)
    with says(KeyError, "did you mean 'prism'"): policy('best-of', base='prisms')

def test_what_reads_qualities_says_so():
    assert [policy('best-of', base=b, score=s).reads_quality for b, s in (
        ('backbone', 'confidence'), ('backbone', 'quality'), ('prism', 'confidence'), ('mask-predict', 'confidence'))
    ] == [False, True, True, False]
    model = small_lm(0, quality_blocks=None)
    with says(ValueError, 'quality head'): sample(model, 'best-of', 16, score='quality')
    assert (sample(model, 'best-of', 16).tokens != model.mask_id).all()
