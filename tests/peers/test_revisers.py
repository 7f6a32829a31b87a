"""RemeDi, Saber and reflective masking against loops over positions."""
import math

import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.sampler.draws import TokenSampler
from navira.sampling import sample
from helpers.peers import best, everywhere, prefixes
from toys import Tiny

def planned(model, x, T, seed, temperature, head, length):
    "One row of RemeDi: candidates at masks, all of the block ranked, the best stay"
    x, M, N = x.clone(), model.mask_id, Noise(seed, torch.tensor([0]))
    free, draw = [j for j in range(len(x)) if x[j] == M], TokenSampler(temperature)
    length = length or len(free)
    n_blocks = len(free) // length
    for i in range(T):
        u = {k: N.uniform(i, k, len(x))[0] for k in ('token', 'ties')}
        masks = [k for k, j in enumerate(free) if x[j] == M]
        if not masks: break
        b, own = masks[0] // length, i * n_blocks // T
        block = free[b * length:(b + 1) * length]
        first, end = -(-own * T // n_blocks), -(-(own + 1) * T // n_blocks)
        fast = first + end - first - length % (end - first)     # from here on one more a step
        k = (own - b) * length + length // (end - first) * (i + 1 - first) + max(0, i + 1 - fast)
        p = model(x[None])
        logits, g = p.logits(torch.ones(1, len(x), dtype=torch.bool)), p.quality()[0]
        tokens, _ = draw(logits, u['token'])
        y = torch.where(x == M, tokens, x)
        logp = logits.log_softmax(-1).gather(1, y[:, None])[:, 0].tolist()
        def rank(j):
            score = -math.log1p(math.exp(-g[j].item())) if head and x[j] != M else logp[j]
            return -score, u['ties'][j].item()
        stay = sorted(block, key=rank)[:k]
        for j in block: x[j] = y[j] if j in stay else M
    return x

@given(hs.integers(2, 5), hs.integers(0, 2**40), hs.integers(0, 6),
       hs.sampled_from([None, 2, 3, 6]), hs.sampled_from([0., .5, 1.]), hs.booleans())
def test_remedi_is_its_loop(V, seed, more, length, temperature, head):
    model, x, T = Tiny(8, V, seed=seed % 97), torch.full((1, 8), V), 6 // (length or 6) + more
    x[0, [2, 5]] = 0
    out = sample(model, 'remedi', T, 1, seed, prompt=x, block_length=length,
                 temperature=temperature, score='head' if head else 'probability')
    assert torch.equal(out.tokens[0], planned(model, x[0], T, seed, temperature, head, length))

# ---- saber and reflective, at temperature 0

L, V = 12, 5                # the mask is V

def agree(name, loop, seed, P, sharp, budget, **hyper):
    model, x = Tiny(L, V, seed=seed, sharp=sharp), prefixes(L, V, P)
    out = sample(model, name, budget, prompt=x, **hyper)
    want, passes = loop(model, x[0].clone(), range(P, L), budget, hyper['n_tokens'])
    assert torch.equal(out.tokens[0], want) and out.n_forward[0] == passes

def masks_in(x): return (x == V).nonzero()[:, 0].tolist()

shapes = dict(seed=hs.integers(0, 99), P=hs.integers(1, 5), sharp=hs.sampled_from([.25, .5, 1.]))

def falling(model, x, free, _, n):
    passes, before, written = 0, {}, {}
    while masks_in(x):
        masks, (q, new) = masks_in(x), everywhere(model, x).max(-1)
        mean = sum(written.values()) / len(written) if written else math.inf
        chosen = best({j: q[j] for j in masks}, n)
        chosen += [j for j in masks if q[j] > mean and j not in chosen]
        for j in chosen: x[j], written[j] = new[j], q[j].item()
        if masks_in(x):
            fall = {j: before.get(j, 0) - q[j] for j in free if x[j] != V}
            k = min(max(n // 2, math.ceil(len(chosen) / 8)), len(chosen) - 1)
            x[best(fall, k)] = V
        before, passes = dict(enumerate(q)), passes + 1
    return x, passes

@given(n_tokens=hs.integers(1, 6), **shapes)
def test_saber_is_its_loop(n_tokens, **shape):
    agree('saber', falling, budget=1, n_tokens=n_tokens, **shape)

def rejecting(model, x, free, T, n):
    passes = 0
    for i in range(T):
        if i == T - 1 and not masks_in(x): break               # nothing is asked
        g, (q, new), before = model(x[None]).quality()[0], everywhere(model, x).max(-1), x.clone()
        masks, passes = masks_in(x), passes + 1
        back = [j for j in free if x[j] != V and g[j] < 0 and i < T - 1]
        k = max(n, math.ceil((len(masks) + len(back)) / (T - i)))
        for j in best({j: q[j] for j in masks}, k): x[j] = new[j]
        x[back] = V
        if torch.equal(x, before): break
    return x, passes

@given(budget=hs.integers(1, 24), n_tokens=hs.integers(1, 4), **shapes)
def test_reflective_is_its_loop(budget, n_tokens, **shape):
    agree('reflective', rejecting, budget=budget, n_tokens=n_tokens, **shape)
