"""What the tests of rules that revise share: a model with logits everywhere, and enumeration of a step."""
import itertools, math
from collections import Counter

import pytest
import torch

from navira.sampling import sample
from helpers.peers import N
from toys import Tiny, TinyPass, random_joint

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

@pytest.fixture(scope='module')
def joint4(): return random_joint(4, 2, seed=3)

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
