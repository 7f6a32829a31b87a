"""What the tests of the core share: the policies of the paper, states, draws of a rule by a
fixed score."""
import math
from collections import Counter

import pytest
import torch

from navira.core import TopK
from navira.sampling import sample
from helpers.peers import state
from toys import random_joint, sequential

N = 50_000

# ---- Policies

NAMES = [
    'backbone',
    'mdlm',
    'prism',
    'prism-stochastic',
    'navira-det',
    'navira',
    'navira-quadratic',
    'navira-sigmoid',
    'navira-piecewise',
]
COUPLED, DECOUPLED = ['prism', 'prism-stochastic'], [n for n in NAMES if n.startswith('navira')]
CORRECTING = COUPLED + DECOUPLED

def drawn(model, name, budget, n=N, seed=0, **kw): return sample(model, name, budget, n, seed,
                                                                 batch_size=n, **kw)

# ---- Joints

@pytest.fixture(scope='module')
def joint3(): return random_joint(3, 3, seed=1)

def dist_of(model, given=lambda y: True):
    dist = {tuple(y): p for y, p in zip(model.outcomes.tolist(), model.joint.flatten().tolist())
            if given(y)}
    return {y: p / sum(dist.values()) for y, p in dist.items()}

@pytest.fixture(scope='module')
def joint6(): return random_joint(6, 2, seed=4, floor=.03)

FORMS = {
    'prism': (dict(), lambda u: 0.0),
    'prism-stochastic': (dict(tau=0.6), lambda u: 0.6),
    'navira-det': (dict(), lambda u: 0.0),
    'navira': (dict(tau=0.6), lambda u: 0.6),
    'navira-quadratic': (
        dict(tau_min=0.1, tau_max=0.9, h=0.4),
        lambda u: 0.1 if u <= 0.4 else 0.1 + 0.8 * ((u - 0.4) / 0.6) ** 2,
    ),
    'navira-sigmoid': (
        dict(tau_min=0.1, tau_max=0.9, k=9.0, c=0.6),
        lambda u: 0.1 + 0.8 / (1 + math.exp(-9 * (u - 0.6))),
    ),
    'navira-piecewise': (
        dict(tau_min=0.1, tau_mid=0.3, tau_max=0.9, p1=0.3, p2=0.7),
        lambda u: (
            0.1 if u <= 0.3 else 0.1 + 0.2 * (u - 0.3) / 0.4 if u <= 0.7 else 0.3 + 0.6
            * ((u - 0.7) / 0.3) ** 1.5
        ),
    ),
}

# ---- Draws by a fixed score

S5 = torch.tensor([-1.2, .3, .9, 1.4, 2.5], dtype=torch.float64)

def by(score, k, tau=None):
    "A rule by a fixed score [L], the same in each row"
    return TopK(lambda st, p, where: score.expand(st.x.shape), k, tau)

def picked(k, tau, s=S5, n=N, eligible=None, seed=0):
    st = state(torch.zeros(len(s), dtype=torch.long), 9, 0, 10, n, seed)
    some = torch.ones(len(s), dtype=torch.bool) if eligible is None else eligible
    return by(-s, k, tau)(st, None, some.expand(n, -1))

def sets(x): return Counter(tuple(r) for r in x.nonzero()[:, 1].view(len(x), -1).tolist())

def exact_sets(s, tau, k):
    out = Counter()
    for seq, q in sequential({j: math.exp(-v / tau) for j, v in enumerate(s.tolist())}, k).items():
        out[tuple(sorted(seq))] += q
    return out
