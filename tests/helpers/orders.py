"""What the tests of orders share: states, the authors' LLaDA loop by hand, a joint, and refusals."""
from dataclasses import replace

import pytest
import torch

from navira.base.noise import Noise
from navira.core import State
from navira.sampling import sample
from helpers.peers import N
from toys import Tiny, counted, random_joint

def state(masked, T=4, i=0, seed=0, mask_id=9):
    "Rows with masks where `masked` [B, L] says and committed tokens elsewhere"
    masked = torch.as_tensor(masked).bool()
    st = State.start(torch.full(masked.shape, mask_id), mask_id, T, Noise(seed, torch.arange(len(masked))))
    return replace(st, x=torch.where(masked, mask_id, 0), i=i)

def prompts(model, *lengths):
    x = torch.full((len(lengths), model.length), model.mask_id)
    for b, n in enumerate(lengths): x[b, :n] = torch.arange(n) % 3
    return x

def distributions(model, x):
    masked = x == model.mask_id
    q = torch.tensor(model(x[None]).logits(masked[None]).tolist()).softmax(-1)
    return dict(zip(masked.nonzero().flatten().tolist(), q))

def top(rate, k): return sorted(rate, key=lambda j: -rate[j])[:k]

def low_confidence(model, x, T, length):
    "LLaDA's loop at temperature 0"
    x, P = x.clone(), int((x != model.mask_id).sum())
    nb = (len(x) - P) // length
    for b in range(nb):
        base, rem = divmod(length, T // nb)
        for i in range(T // nb):
            c = {j: q.max() for j, q in distributions(model, x).items() if j < P + (b + 1) * length}
            q = distributions(model, x)
            for j in top(c, base + (i < rem)): x[j] = q[j].argmax()
    return x

SEEDS = range(3)

@pytest.fixture(scope='module')
def joint3(): return random_joint(3, 3, seed=1, floor=.1)

def joint_of(model): return {tuple(y): p for y, p in zip(model.outcomes.tolist(), model.joint.flatten().tolist())}

def drawn(model, rule, T, **kw): return counted(sample(model, rule, T, N, batch_size=N, **kw).tokens)

def refused(name, kw, parts):
    "Value, range and why are named before any pass"
    model = Tiny(12, 5)
    with pytest.raises(ValueError) as e: sample(model, name, 6, **kw)
    assert all(p in str(e.value) for p in parts), e.value
    assert not model.rows
