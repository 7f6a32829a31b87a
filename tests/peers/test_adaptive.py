"""Fast-dLLM, Fast-dLLM++, KLASS, EB, DUS, bisection and PUNT against their loops and bounds."""
import itertools, math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as hs

from navira.core import Pass, pick
from navira.diffusion import greedy
from navira.exact import Distribution, state_at
from navira.joint import JointDenoiser
from navira.peers.adaptive import (
    bisection, dus, eb, fast_dllm, fast_dllm_plus, klass, middles, punt)
from navira.sampling import sample
from helpers.peers import at_masks, best, prefixes, started
from toys import Tiny, random_joint

def ent(q): return -sum(a * math.log(a) for a in q.tolist() if a > 0)

def confident(model, x, length, threshold): # Fast-dLLM's loop: the text, the number of passes
    x, P, n = x.clone(), int((x != model.mask_id).sum()), 0
    for b in range(P, len(x), length):
        while any(x[b:b + length] == model.mask_id):
            q = {j: v for j, v in at_masks(model, x).items() if j < b + length}
            c = {j: v.max().item() for j, v in q.items()}
            for j in c:
                if c[j] >= threshold or j == best(c, 1)[0]: x[j] = q[j].argmax()
            n += 1
    return x, n

def bounded(model, x, gamma, rate): # EB's loop
    x, n = x.clone(), 0
    while (x == model.mask_id).any():
        q, h = at_masks(model, x), []
        for j in best({j: rate(v) for j, v in q.items()}, len(q)):
            h.append(ent(q[j]))
            if sum(h) - max(h) > gamma + 1e-12: break
            x[j] = q[j].argmax()
        n += 1
    return x, n

def spaced(model, x, length, threshold, base): # DUS's loop with deferral
    x, P = x.clone(), int((x != model.mask_id).sum())
    for b in range(P, len(x), length):
        levels, seen, stride = [], set(), length // base
        while stride:
            levels.append([j for j in range(0, length, stride) if j not in seen])
            seen |= set(levels[-1])
            stride //= base
        if len(seen) < length: levels.append([j for j in range(length) if j not in seen])
        if len(levels) > 1 and len(levels[-1]) < len(levels[-2]):
            last = levels.pop()
            levels[-1] += last
        due = []
        for r, level in enumerate(levels):
            due += [b + j for j in level if b + j < len(x)]
            q = at_masks(model, x)
            now = [j for j in due if q[j].max() >= threshold or r == len(levels) - 1]
            for j in now: x[j] = q[j].argmax()
            due = [j for j in due if j not in now]
    return x

@pytest.mark.parametrize('seed', range(3))
def test_fast_dllm_eb_and_dus_are_their_loops(seed):
    model = Tiny(11, 5, seed=seed)
    rates = dict(entropy=lambda q: -ent(q), confidence=lambda q: q.max().item(),
                 margin=lambda q: -q.topk(2).values.diff().item())
    for P, level in itertools.product((0, 3), (.3, .6, 1.)):
        x = prefixes(11, 5, P)
        run = lambda rule: sample(model, rule, 1, prompt=x)
        pairs = [(run(fast_dllm(level, 4)), confident(model, x[0], 4, level))]
        for name, rate in rates.items():
            s = run(replace(eb(level * 4, name), draw=greedy))
            pairs.append((s, bounded(model, x[0], level * 4, rate)))
        for s, (want, n) in pairs: assert torch.equal(s.tokens[0], want) and s.n_forward[0] == n
        for length, base in ((4, 2), (5, 2), (8, 3), (11, 2)):
            want = spaced(model, x[0], length, level, base)
            assert torch.equal(run(dus(base, length, level)).tokens[0], want), (length, base)

@given(hs.integers(0, 200), hs.sampled_from([0., .05, .2, .5, 1., math.inf]),
       hs.sampled_from(['entropy', 'confidence', 'margin']))
def test_ebs_guarantee(seed, gamma, order):
    "KL(p || sampler), the sum of the expected total correlations, is at most gamma a step"
    model = random_joint(3, 2, seed=seed, floor=.02)
    x, p, M, rule = model.outcomes, model.joint.flatten(), model.mask_id, eb(gamma, order)
    # one noise for all: the rule is a function of the state
    st = started(torch.full_like(x, M), M, 3)
    st = replace(st, noise=st.noise[torch.zeros(len(x), dtype=torch.long)])
    def visible(r): return p[((r == M) | (r == x)).all(1)].sum()
    match = lambda a: torch.stack([visible(r) for r in a])
    lost, steps = torch.zeros(len(x), dtype=torch.float64), torch.zeros(len(x), dtype=torch.float64)
    while st.masked.any():
        steps += st.masked.any(1)
        seen = Pass(model, st, rule.draw)
        where = pick(rule.unmask, st, seen, st.masked)
        assert (where.any(1) == st.masked.any(1)).all()
        after = torch.where(where, x, st.x)
        tokens = seen.logits(where).log_softmax(-1).gather(1, x[where][:, None])[:, 0]
        lost += (match(after) / match(st.x)).log()
        lost = lost.index_add(0, where.nonzero()[:, 0], tokens.double(), alpha=-1)
        st = replace(st, x=after, i=st.i + 1)
    assert -1e-12 <= (p * lost).sum() <= gamma * (p * steps).sum() + 1e-12
    if gamma == math.inf: assert (steps == 1).all()

# ---- klass

def klass_loop(model, x, length, tau, near, H): # one row, full distributions of every pass
    x, P, past = x.clone(), int((x != model.mask_id).sum()), []
    for b in range(P, len(x), length):
        age = 0
        while (x[b:b + length] == model.mask_id).any():
            past.append({j: v.double().tolist() for j, v in at_masks(model, x).items()})
            q, age = past[-1], age + 1
            block = [j for j in q if j < b + length]
            def moved(j, h):
                if len(past) < h + 2: return math.inf
                now, was = past[-h - 1][j], past[-h - 2][j]
                return sum(a * math.log(a / c) for a, c in zip(now, was) if a > 0)
            def ready(j):
                return max(q[j]) > tau and age >= H and all(moved(j, h) < near for h in range(H))
            chosen = [j for j in block if ready(j)] or best({j: max(q[j]) for j in block}, 1)
            for j in chosen: x[j] = q[j].index(max(q[j]))
    return x, len(past)

def sharp(seed):
    "`Tiny`, much surer of its tokens"
    model = Tiny(11, 5, seed=seed)
    model.W = 2 * model.W
    return model

@given(hs.integers(0, 60), hs.sampled_from([(0, 11), (3, 4), (2, 6)]),
       hs.sampled_from([.2, .4, .6, .9]), hs.sampled_from([1e-3, .02, .1, 1., 20.]),
       hs.integers(1, 3))
def test_klass_is_its_loop(seed, shape, tau, near, H):
    (P, length), model = shape, sharp(seed)
    x = prefixes(11, 5, P)
    out = sample(model, klass(tau, near, H, length), 1, prompt=x)
    want, n = klass_loop(model, x[0], length, tau, near, H)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

# ---- fast-dllm-plus

def fitted(model, x, length, margin): # Fast-dLLM++'s loop: the text, the number of passes
    x, P, n = x.clone(), int((x != model.mask_id).sum()), 0
    for b in range(P, len(x), length):
        while any(x[b:b + length] == model.mask_id):
            q = {j: v for j, v in at_masks(model, x).items() if j < b + length}
            order, c = best({j: v.max().item() for j, v in q.items()}, len(q)), []
            for j in order:
                c.append(q[j].max().item())
                lower, upper = max(0, sum(c) - (len(c) - 1)), 1 - c[-1]
                if len(c) > 1 and lower - upper < margin: break
                x[j] = q[j].argmax()
            n += 1
    return x, n

@given(hs.integers(0, 60), hs.sampled_from([(0, 11), (3, 4), (2, 6)]),
       hs.sampled_from([0., .1, .25, .7]))
def test_fast_dllm_plus_is_its_loop(seed, shape, margin):
    (P, length), model = shape, sharp(seed)
    x = prefixes(11, 5, P)
    out = sample(model, fast_dllm_plus(margin, length), 1, prompt=x)
    want, n = fitted(model, x[0], length, margin)
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == n

@given(hs.integers(0, 200), hs.sampled_from([2., 4., 8.]), hs.sampled_from([0., .25]))
def test_what_fast_dllm_plus_commits_together_is_the_mode(seed, beta, margin):
    g = torch.Generator().manual_seed(seed)
    model = JointDenoiser((beta * torch.randn((2,) * 4, generator=g, dtype=torch.float64)).exp())
    x = torch.cartesian_prod(*[torch.arange(3)] * 4)
    st, rule = state_at(model, x), fast_dllm_plus(margin)
    S = pick(rule.unmask, st, Pass(model, st, rule.draw), st.masked)
    for row, at in zip(x[S.sum(1) > 1], S[S.sum(1) > 1]):
        fits = ((model.outcomes == row) | (row == 2)).all(1)
        texts, p = model.outcomes[fits][:, at], model.joint.flatten()[fits]
        each = model.table[model.state(row[None])[0]][at].argmax(1)
        joint = {tuple(t): p[(texts == t).all(1)].sum() for t in texts}
        together = p[(texts == each).all(1)].sum()
        assert all(together >= q - 1e-12 for q in joint.values())

# ---- bisection

def halved(masks): # the positions of one step, from the list of masks of a text with a token
    runs, start = [], 0
    for k in range(1, len(masks) + 1):
        if k == len(masks) or masks[k] != masks[k - 1] + 1: runs.append(masks[start:k]); start = k
    return [run[(len(run) - 1) // 2] for run in runs]

@given(hs.lists(hs.booleans(), min_size=1, max_size=40))
def test_bisection_takes_the_middle_of_each_stretch(pattern):
    masked = torch.tensor([pattern])
    st = state_at(SimpleNamespace(mask_id=9), torch.where(masked, 9, 0))
    want = [0] if all(pattern) else halved(masked[0].nonzero()[:, 0].tolist())
    assert middles(st, None, masked)[0].nonzero()[:, 0].tolist() == want

@given(hs.integers(1, 40))
def test_bisection_takes_a_logarithm_of_passes(L):
    out = sample(Tiny(L, 5), bisection(), 1)
    assert out.n_forward[0] == 1 + (L - 1).bit_length()

def chain(factor, L, closed=False):
    "A joint with this factor [2, 2, ...] for neighbours"
    x, n = torch.cartesian_prod(*[torch.arange(2)] * L), factor.ndim
    starts = range(L if closed else L - n + 1)
    each = [factor[tuple(x.roll(-i, 1)[:, :n].T)] for i in starts]
    return JointDenoiser(torch.stack(each).prod(0).view((2,) * L))

def error(model):
    "Total variation of the rule's own steps to the joint"
    def choose(q, drawn, i):
        x = torch.tensor([[2 if j in q else 0 for j in range(model.length)]])
        st = state_at(model, x)
        return {tuple(middles(st, None, st.masked)[0].nonzero()[:, 0].tolist()): 1.}
    joint = Distribution.of(model.joint.flatten(), model.outcomes)
    return joint.distance(Distribution.unmasking(model, choose))

@settings(max_examples=20)
@given(hs.integers(0, 99), hs.integers(2, 6), hs.booleans())
def test_bisection_is_exact_on_walks_open_and_closed(seed, L, closed):
    g = torch.Generator().manual_seed(seed)
    factor = torch.rand(2, 2, generator=g, dtype=torch.float64) ** 3 + .02
    assert error(chain(factor, L, closed)) < 1e-12

def test_a_second_order_chain_breaks_bisection():
    "Each token is mostly the last one but one, which the last pass writes with it"
    repeats = torch.eye(2, dtype=torch.float64)[:, None] + .1
    assert error(chain(repeats.expand(2, 2, 2), 7)) > .1

# ---- punt

def probed(model, x, eps): # PUNT's loop at temperature 0
    x, n = x.clone(), 0
    while (x == model.mask_id).any():
        q, n = at_masks(model, x), n + 1
        order = best({j: v.max().item() for j, v in q.items()}, len(q))
        kept = order
        for b in reversed(range((len(order) - 1).bit_length())):
            anchors = [j for j in kept if not order.index(j) >> b & 1]
            if len(anchors) == len(kept): continue
            z, n = x.clone(), n + 1
            for j in anchors: z[j] = q[j].argmax()
            r = at_masks(model, z)
            def moved(j): return sum(a * math.log(a / c) for a, c in zip(q[j], r[j]) if a > 0)
            kept = [j for j in kept if j in anchors or moved(j) <= eps]
        for j in kept: x[j] = q[j].argmax()
    return x, n

@given(hs.integers(0, 60), hs.sampled_from([0, 3, 6]),
       hs.sampled_from([1e-6, .003, .03, .3, 3., math.inf]))
def test_punt_is_its_loop_and_charges_its_tests(seed, P, eps):
    model, x = Tiny(11, 5, seed=seed), prefixes(11, 5, P, 10 - P)
    out = sample(model, replace(punt(eps), draw=greedy), 1, prompt=x)
    assert out.n_forward.sum() == sum(model.rows)
    for row, got, n in zip(x, out.tokens, out.n_forward):
        want, passes = probed(model, row, eps)
        assert torch.equal(got, want) and n == passes
