"""What the tests of peers share: models, states, prompts, and steps by hand."""
from dataclasses import replace

import torch

from navira.base.noise import Noise
from navira.core import no_watch, State, step

N = 50_000
# What policies differ in: a second pass, qualities, a critic, blocks, shadows, attention, edits.
# A property of the loop is tested on these; what each registers, on all of them
KINDS = ['backbone', 'mdlm', 'prism', 'navira', 'navira-det-changed', 'remdm-cap', 'remdm-conf',
         'llada-low-confidence', 'eb', 'klass', 'wino', 'dos', 'llada2-edit', 'token-critic']
WITHOUT_CRITIC = [name for name in KINDS if name != 'token-critic']

def state(x, M, i, T, n=None, seed=0, conf=None, fixed=None):
    "n rows that stand at `x` before step i, all of it free unless `fixed`"
    x = torch.as_tensor(x)
    x = x.expand(n, -1) if n else x
    st = State.start(torch.full_like(x, M), M, T, Noise(seed, torch.arange(len(x))))
    conf = st.conf if conf is None else torch.as_tensor(conf, dtype=torch.float64).expand(x.shape)
    fixed = st.fixed if fixed is None else torch.as_tensor(fixed).expand(x.shape)
    return replace(st, x=x, i=i, conf=conf, fixed=fixed)

def started(x, M, T, seed=0):
    "The rows of `x` [B, L] before the first of T steps, its tokens a prompt"
    return State.start(x, M, T, Noise(seed, torch.arange(len(x))))

def run(rule, st, model, watch=no_watch):
    "The state after the last step, without `sample`"
    while st.i < st.n: st = step(rule, st, model, watch)
    return st

def everywhere(model, x): # -> probabilities [L, V] of one row
    return model(x[None]).logits(torch.ones(1, len(x), dtype=torch.bool)).softmax(-1)

def at_masks(model, x): # -> {position: probabilities [V]} of one row
    masked = x == model.mask_id
    q = model(x[None]).logits(masked[None]).softmax(-1)
    return dict(zip(masked.nonzero()[:, 0].tolist(), q))

def best(rate, k): return sorted(rate, key=lambda j: -rate[j])[:k]

def by_blocks(model, x, length, choose):
    """A row whose leftmost block gets the tokens of `choose`, {position: token}, until it is full;
    and the number of passes. It is asked with the row, the masks of the block, and how often."""
    x, first, n = x.clone(), int((x != model.mask_id).sum()), 0
    for b in range(first, len(x), length):
        age = 0
        while (x[b:b + length] == model.mask_id).any():
            masks = [j for j in range(b, min(b + length, len(x))) if x[j] == model.mask_id]
            n, age = n + 1, age + 1
            for j, v in choose(x, masks, age).items(): x[j] = v
    return x, n

def prompts(L, V, seed, rows=3, share=.25):
    "Rows [rows, L] with a share of random tokens and masks V, at least one of them"
    g = torch.Generator().manual_seed(seed)
    given = torch.rand(rows, L, generator=g) < share
    given[:, int(torch.randint(L, (1,), generator=g))] = False
    return torch.where(given, torch.randint(V, (rows, L), generator=g), V)

def prefixes(L, V, *lengths):
    "A row for each length of its prompt"
    x = torch.full((len(lengths), L), V)
    for b, n in enumerate(lengths): x[b, :n] = torch.arange(n) % V
    return x
