"""Rules that edit what is written: against plain loops, within budgets, block by block; what they refuse."""
import math

import pytest
import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.core import Pass, State, step
from navira.peers.editors import fallen, in_work, llada2_edit, proseco, rival, spare, t2m
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import state
from helpers.revisers import Raw
from toys import pick, small_lm, truncate

STRATEGIES = {'low-prob': (.1, .3, .6), 'take-over': (.5, .9), 'drop': (.02, .3)}

def everywhere(model, x): # probabilities [L][V + 1] of one row
    return model(x[None]).logits(torch.ones(1, len(x), dtype=torch.bool)).softmax(-1)

def prompts(L, V, seed, rows=3):
    "Rows with some tokens given, at least one position free"
    g = torch.Generator().manual_seed(seed)
    given = torch.rand(rows, L, generator=g) < .25
    given[:, int(torch.randint(L, (1,), generator=g))] = False
    return torch.where(given, torch.randint(V, (rows, L), generator=g), V)

# ---- block by block

def blockwise(model, x, length, theta, post, edit=None, sign=None):
    "One row as the public loops have it. `edit`: a threshold. `sign`: name, threshold, remasks of a position, share."
    x, M, passes = x.clone(), model.mask_id, 0
    free = [j for j in range(len(x)) if x[j] == M]
    length = len(free) if length is None else length
    for block in (free[k:k + length] for k in range(0, len(free), length)):
        full, counts, before = 0, dict.fromkeys(block, 0), None
        while True:
            masks = [j for j in block if x[j] == M]
            full += not masks
            if not masks and (full > post or edit is None and sign is None): break
            p, old, stand = everywhere(model, x), x.clone(), [j for j in block if j not in masks]
            new, q = p.argmax(-1), p.amax(-1)
            passes += 1
            fill = [j for j in masks if q[j] > theta] or sorted(masks, key=lambda j: -q[j])[:1]
            x[fill] = new[fill]
            gone = []
            if edit is not None:
                gone = [j for j in stand if new[j] != old[j] and q[j] > edit]
                x[gone] = new[gone]
            elif sign is not None and stand:
                name, at, most, share = sign
                if name == 'low-prob': doubt = {j: 1 - p[j, old[j]] for j in stand if p[j, old[j]] < at}
                if name == 'take-over': doubt = {j: q[j] for j in stand if new[j] != old[j] and q[j] > at}
                if name == 'drop':
                    fall = {} if before is None else {j: before[j, old[j]] - p[j, old[j]] for j in stand}
                    doubt, before = {j: v for j, v in fall.items() if v > at}, p
                doubt = {j: v for j, v in doubt.items() if counts[j] < most}
                gone = sorted(doubt, key=lambda j: -doubt[j])[:max(1, int(len(stand) * share))]
                x[gone] = M
                for j in gone: counts[j] += 1
            if not masks and not gone: break
    return x, passes

def generous(x, M, length, post): # steps that no public loop exceeds
    n = (x == M).sum(1).max().item()
    return n + (post + 1) * (1 if length is None else -(-n // length)) + 1

lengths, posts = hs.sampled_from([None, 1, 2, 3, 5]), hs.sampled_from([0, 1, 3, 16])
thetas = hs.sampled_from([.3, .7, 1.])

@given(hs.integers(1, 9), hs.integers(2, 5), hs.integers(0, 2**40), lengths, posts, thetas,
       hs.sampled_from([None, 0., .4, .8, 1.]))
def test_llada2_edit_is_the_public_loop(L, V, seed, length, post, theta, edit):
    model, x = Raw(L, V, seed=seed % 997), prompts(L, V, seed)
    rule = llada2_edit(theta, edit, post, length)
    out = sample(model, rule, generous(x, V, length, post), 3, seed, prompt=x)
    for b in range(3):
        tokens, passes = blockwise(model, x[b], length, theta, post, edit)
        assert torch.equal(out.tokens[b], tokens) and out.n_forward[b] == passes

@given(hs.integers(2, 9), hs.integers(2, 5), hs.integers(0, 2**40), hs.sampled_from([None, 2, 3, 5]), posts, thetas,
       hs.sampled_from([(k, v) for k, vs in STRATEGIES.items() for v in vs]), hs.integers(0, 3),
       hs.sampled_from([0., .25, .6]))
def test_t2m_is_the_public_loop(L, V, seed, length, post, theta, sign, most, share):
    model, x = Raw(L, V, seed=seed % 997), prompts(L, V, seed)
    rule = t2m(*sign, most, share, theta, post, length)
    out = sample(model, rule, (most + 1) * generous(x, V, length, post) + 2 * most * L, 3, seed, prompt=x)
    for b in range(3):
        tokens, passes = blockwise(model, x[b], length, theta, post, sign=(*sign, most, share))
        assert torch.equal(out.tokens[b], tokens) and out.n_forward[b] <= passes  # none to remask nothing

RULES = {
    'llada2-edit': [dict(editing_threshold=e, max_post_steps=k) for e in (None, 0., .4) for k in (0, 5)],
    't2m': [dict(strategy=k, remask_threshold=v[0], ratio=s) for k, v in STRATEGIES.items() for s in (.25, 1.)],
}
hypers = hs.sampled_from([(name, h) for name, hs_ in RULES.items() for h in hs_])

@given(hypers, hs.integers(1, 9), hs.integers(2, 4), hs.integers(0, 2**40), hs.sampled_from([None, 1, 2, 4]),
       hs.integers(0, 12), hs.sampled_from([0., 1.]))
def test_any_budget_is_kept_and_blocks_are_filled_in_turn(rule, L, V, seed, length, more, temperature):
    name, hyper = rule
    model, x = Raw(L, V, seed=seed % 997), prompts(L, V, seed)
    n = (x == V).sum(1)
    budget = (1 if length is None else -(-int(n.max()) // length)) + more
    hyper = hyper | dict(block_length=length, temperature=temperature)
    out = sample(model, name, budget, 3, seed, prompt=x, trace=True, **hyper)
    t = out.trace
    assert out.n_steps == budget and (out.n_forward <= budget).all() and (out.n_forward >= 1).all()
    assert not (out.tokens == V).any() and torch.equal(t.x[:, x != V], x[x != V].expand(budget + 1, -1).int())
    assert out.n_forward.sum() == sum(model.rows)
    for b in range(3):
        free = (x[b] == V).nonzero()[:, 0].tolist()
        size = length or len(free)
        last = 0
        for i in range(budget):                             # what changes is in one block, and all before it are full
            at = {free.index(j) // size for j in (t.x[i, b] != t.x[i + 1, b]).nonzero()[:, 0].tolist()}
            assert len(at) <= 1
            for k in at:
                assert k >= last and not (t.x[i + 1, b, free[:k * size]] == V).any()
                last = k
        alone = sample(model, name, budget, range(b, b + 1), seed, prompt=x[b], **hyper)
        assert torch.equal(alone.tokens[0], out.tokens[b]) and alone.n_forward[0] == out.n_forward[b]

@pytest.mark.parametrize('N, length', [(5, 4), (6, 5), (9, 4), (7, 2), (9, 8)])
def test_a_short_last_block_does_not_cost_the_others_a_step(N, length):
    "Where each block has one step, an even share of the masks would leave some of a long block"
    n = -(-N // length)
    for budget in (n, n + 1, n + 2):
        for name in RULES:
            out = sample(Raw(N, 4), name, budget, 5, block_length=length, threshold=1.)
            assert not (out.tokens == 4).any() and (out.n_forward <= budget).all()

def test_too_few_steps_for_the_blocks_are_refused_before_a_pass():
    model = Raw(9, 3)
    for name in RULES:
        with pytest.raises(ValueError, match='block_length=2: 5 blocks need at least 5 steps, and the budget gives 4'):
            sample(model, name, 4, 1, block_length=2)
    assert not model.rows

def test_t2m_keeps_its_limits():
    "A position is remasked at most so often, a pass remasks at most a share of what stands, and one at least may be"
    model = Raw(12, 4, seed=5)
    for most, ratio in ((1, .25), (3, .5), (2, 0.)):
        hyper = dict(remask_threshold=.9, max_remasks=most, ratio=ratio, threshold=.3)
        t = sample(model, 't2m', 90, 20, trace=True, **hyper).trace
        stood = (t.x[:-1] != 4).sum(2)
        assert t.remasked.sum(0).max() == most
        assert (t.remasked.sum(2) <= (stood * ratio).long().clamp(min=1)).all() and t.remasked.sum(2).max() >= 1

def test_what_the_last_pass_said_is_about_the_token_that_stands_now():
    model, rule = Raw(6, 3, seed=2), t2m('drop', 1., threshold=1.)
    s = State.start(torch.full((4, 6), 3), 3, 60, Noise(0, torch.arange(4)))
    for i in range(5):
        p = model(s.x).logits(torch.ones(4, 6, dtype=torch.bool)).softmax(-1).view(4, 6, 4)
        s = step(rule, s, model)
        trust, stands = s.memory['trust'], s.x != 3
        if i == 0: assert trust.isnan().all()
        else:
            own = p.gather(2, s.x[..., None])[..., 0]
            assert torch.allclose(trust[stands], own[stands]) and trust[~stands].isnan().all()
    now = Pass(model, s)
    fall = fallen(s, now, s.committed)
    q = model(s.x).logits(torch.ones(4, 6, dtype=torch.bool)).softmax(-1).view(4, 6, 4)
    q = q.gather(2, s.x[..., None])[..., 0]
    assert torch.allclose(fall[s.committed], (trust - q)[s.committed])

def test_a_full_block_stays_in_work_and_a_row_in_another_block_does_not_care():
    s = state([[1, 1, 3, 3], [1, 1, 1, 3]], 3, 2, 9)
    assert in_work(s, 2).tolist() == [[True, True, False, False]] * 2              # nothing is remembered yet
    s = s.remember(block=torch.tensor([1, 2]), full=torch.tensor([0, 4]))
    assert in_work(s, 2).tolist() == [[False, False, True, True], [False] * 4]
    assert spare(s, 2).tolist() == [6, 7] and in_work(s[torch.tensor([True, False])], 2).shape == (1, 4)

def test_a_token_is_no_rival_of_itself():
    model, rule = Raw(5, 4), llada2_edit()
    s = state([[0, 1, 2, 3, 0]], 4, 0, 5, 30)
    p = everywhere(model, s.x[0])
    v = rival(rule.draw)(s, Pass(model, s), s.committed)[0]
    assert torch.equal(v.isnan(), p.argmax(-1) == s.x[0]) and torch.allclose(v[~v.isnan()], p.amax(-1)[~v.isnan()])

@pytest.mark.parametrize('length', [2, 3, 4, None])
def test_without_editing_it_is_fast_dllm(length):
    model = Raw(9, 4)
    hyper = dict(threshold=.6, block_length=length, temperature=1.)
    plain = sample(model, 'fast-dllm', 9, 60, **hyper)
    for name, off in (('llada2-edit', dict(editing_threshold=None)), ('t2m', dict(max_remasks=0))):
        out = sample(model, name, 9, 60, **hyper, **off)
        assert torch.equal(out.tokens, plain.tokens) and torch.equal(out.n_forward, plain.n_forward)

# ---- proseco

def drafted(model, x, T, seed, times, every, P):
    "The public loop with its argmax corrections, by positions: tokens, and passes of which something comes"
    x, M, (B, L), N = x.clone(), model.mask_id, x.shape, Noise(seed, torch.arange(len(x)))
    free, passes = [[j for j in range(L) if x[b, j] == M] for b in range(B)], [0] * B
    for i in range(T):
        u = {k: N.uniform(i, k, L).tolist() for k in ('flip', 'token')}
        for b in range(B):
            masks = [j for j in free[b] if x[b, j] == M]
            new = [j for j in masks if u['flip'][b][j] < 1 / (T - i)]
            correct = times and (i + 1) % every == 0 and (new or len(masks) < len(free[b]))
            if masks and (correct or new): p, passes[b] = everywhere(model, x[b]), passes[b] + 1
            if correct:
                y = x[b].clone()
                for j in masks: y[j] = p[j].argmax()
                for _ in range(times):
                    p, z = everywhere(model, y), y.clone()
                    for j in free[b]: z[j] = p[j].argmax()
                    passes[b] += 1
                    if torch.equal(z, y): break
                    y = z
                for j in free[b]: x[b, j] = M if j in masks else y[j]
            for j in new: x[b, j] = pick(truncate(p[j].tolist(), P), u['token'][b][j])
    return x, passes

@given(hs.integers(1, 8), hs.integers(2, 5), hs.integers(0, 2**40), hs.integers(1, 9), hs.integers(0, 4),
       hs.integers(1, 3), hs.sampled_from([.6, 1.]))
def test_proseco_is_the_public_loop(L, V, seed, T, times, every, P):
    model, x = Raw(L, V, seed=seed % 997), prompts(L, V, seed)
    rule = proseco(times, every, P)
    s = State.start(x, V, T, Noise(seed, torch.arange(3)))
    for _ in range(T): s = step(rule, s, model)
    assert s.n_forward.sum() == sum(model.rows)
    tokens, passes = drafted(model, x, T, seed, times, every, P)
    assert torch.equal(s.x, tokens) and s.n_forward.tolist() == passes and s.n_forward.max() <= rule.step.cost(T)

@given(hs.integers(1, 300), hs.integers(0, 5), hs.integers(1, 4))
def test_proseco_takes_all_the_steps_that_the_budget_pays_for(budget, times, every):
    rule = proseco(times, every)
    T = rule.steps(rule, budget, None)
    paid = lambda T: T + sum(times for i in range(T) if (i + 1) % every == 0)
    assert paid(T) == rule.step.cost(T) and paid(T + 1) > budget and (paid(T) <= budget or budget < rule.passes)

def test_proseco_leaves_masks_of_other_blocks_alone():
    "`sample` hands a policy one block at a time, and what is to the right of it is fixed"
    model = Raw(9, 4)
    t = sample(model, 'proseco', 27, 20, block_length=3, n_correct=2, every=1, trace=True).trace
    for i in range(9): assert (t.x[i, :, 3 * (i // 3 + 1):] == 4).all()

def test_in_small_networks_a_row_is_what_it_is_alone():
    model = small_lm(vocab_size=11, model_length=12)
    prompt = torch.full((3, 12), model.mask_id); prompt[0, 5] = 3; prompt[1, :6] = 1; prompt[2, 1:] = 2
    with torch.inference_mode():
        for name in (*RULES, 'proseco'):
            out = sample(model, name, 12, 3, prompt=prompt)
            assert not (out.tokens == model.mask_id).any() and torch.equal(out.tokens[2, 1:], prompt[2, 1:])
            for b in range(3):
                assert torch.equal(sample(model, name, 12, range(b, b + 1), prompt=prompt[b]).tokens[0], out.tokens[b])

# ---- bad input

@pytest.mark.parametrize('name, hyper, text', [
    *[(n, h, t) for n in RULES for h, t in (
        (dict(threshold=0.), 'threshold=0'), (dict(threshold=1.1), 'threshold=1.1'),
        (dict(block_length=0), 'block_length=0'), (dict(max_post_steps=-1), 'max_post_steps=-1'),
        (dict(temperature=-1.), 'temperature=-1'))],
    ('llada2-edit', dict(editing_threshold=-.1), 'editing_threshold=-0.1'),
    ('llada2-edit', dict(editing_threshold=math.nan), 'editing_threshold=nan'),
    ('t2m', dict(remask_threshold=2.), 'remask_threshold=2'), ('t2m', dict(ratio=-.5), 'ratio=-0.5'),
    ('t2m', dict(max_remasks=-1), 'max_remasks=-1'), ('t2m', dict(max_remasks=1.5), 'max_remasks=1.5'),
    ('proseco', dict(n_correct=-1), 'n_correct=-1'), ('proseco', dict(every=0), 'every=0'),
    ('proseco', dict(top_p=0.), 'top_p=0'),
])
def test_bad_input_is_named_when_the_policy_is_built(name, hyper, text):
    with pytest.raises(ValueError) as e: policy(name, **hyper)
    assert text in str(e.value)

def test_a_sign_that_there_is_not_is_answered_with_the_nearest():
    with pytest.raises(KeyError, match="did you mean 'take-over'"): policy('t2m', strategy='takeover')
