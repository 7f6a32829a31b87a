"""Orders of unmasking: the authors' loops, counts, blocks."""
import itertools

import pytest
import torch

from navira.sampling import sample
from helpers.peers import at_masks, best, prefixes
from toys import Tiny

# ---- The authors' loops, on one row and at temperature 0

def llada(model, x, T, length):
    x, P = x.clone(), int((x != model.mask_id).sum())
    n = (len(x) - P) // length
    for b in range(n):
        base, rest = divmod(length, T // n)
        for i in range(T // n):
            q = {j: v for j, v in at_masks(model, x).items() if j < P + (b + 1) * length}
            top = {j: v.max() for j, v in q.items()}
            for j in best(top, base + (i < rest)): x[j] = q[j].argmax()
    return x

def dream(model, x, T, rate, eps=1e-3):
    x, t = x.clone(), torch.linspace(1, eps, T + 1).tolist()
    for i in range(T):
        q = at_masks(model, x)
        k = int(len(q) * (1 - t[i + 1] / t[i])) if i < T - 1 else len(q)
        for j in best({j: rate(v) for j, v in q.items()}, k): x[j] = q[j].argmax()
    return x

@pytest.mark.parametrize('seed', range(3))
def test_llada_and_dream_are_the_authors_loops(seed):
    model = Tiny(12, 5, seed=seed)
    for P, T, length in [(0, 12, 12), (0, 5, 12), (0, 6, 4), (4, 4, 4), (0, 9, 4)]:
        x = prefixes(12, 5, P)
        got = sample(model, 'llada-low-confidence', T, prompt=x, block_length=length).tokens[0]
        assert torch.equal(got, llada(model, x[0], T, length)), (P, T, length)
    rates = {
        'dream-maskgit-plus': lambda q: q.max(),
        'dream-topk-margin': lambda q: q.topk(2).values.diff().neg(),
        'dream-entropy': lambda q: (q * (q + 1e-10).log()).sum()}
    for (name, rate), P, T in itertools.product(rates.items(), (0, 3), (1, 3, 8, 16)):
        x = prefixes(12, 5, P)
        got = sample(model, name, T, prompt=x, temperature=0., top_p=1.).tokens[0]
        assert torch.equal(got, dream(model, x[0], T, rate)), (name, P, T)


