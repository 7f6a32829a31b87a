"""The critic's objective, and what it converges to."""
import itertools
import math

import torch

from navira.diffusion import nucleus
from navira.joint import random_joint
from navira.training.critic import critic_objective
from navira.training.data import keyed
from helpers.critics import Flat
from helpers.training import one_thread  # noqa: F401
from toys import critic_like, small_lm

def test_only_the_critic_learns_from_the_denoisers_own_fills():
    lm, x = small_lm(dropout=.3), torch.randint(0, 10, (6, 12),
                                                generator=torch.Generator().manual_seed(0))
    critic, shown = critic_like(lm).requires_grad_(True), []
    critic.register_forward_pre_hook(lambda m, args: shown.append(args[0]))
    o = critic_objective(critic, lm, .7).train()
    assert not lm.training and {n.split('.')[0] for n, _ in o.named_parameters()} == {'model'}
    z, u = o.noise(x, keyed(0, 0, 1))
    o(x, z, u)['loss'].backward()
    assert all(p.grad is None for p in lm.parameters())
    assert all(p.grad is not None for p in critic.parameters())
    masked = z == lm.mask_id
    assert torch.equal(shown[0][~masked], z[~masked])
    assert torch.equal(shown[0][masked], nucleus(.7)(lm(z).logits(masked), u[masked])[0])
    # a batch without masks
    assert o(x, x, u)['loss'].item() == 0

class Table(torch.nn.Module):
    "A critic with a number of its own for every text and position"
    def __init__(self, joint, g):
        super().__init__()
        self.mask_id, self.state, self.g = joint.mask_id, joint.state, torch.nn.Parameter(g)
    def forward(self, y):
        q = Flat(y)
        q._cached = self.g[self.state(y)]
        return q

def minimiser(m):
    """[states, L] P(x_j = y_j | y, j was filled), over texts, levels t, masks and fills, by
    enumeration"""
    V, L = m.mask_id, m.length
    hit = torch.zeros((V + 1) ** L, L, dtype=torch.float64)
    seen = torch.full_like(hit, 1e-300)
    for x, px in zip(m.outcomes, m.joint.flatten()):
        for hidden in itertools.product([False, True], repeat=L):
            h = torch.tensor(hidden); k = sum(hidden)
            # t uniform
            weight = math.factorial(k) * math.factorial(L - k) / math.factorial(L + 1)
            z, pz = torch.where(h, V, x), px * weight
            p = m(z[None]).logits(torch.ones(1, L, dtype=torch.bool)).exp()
            for y in m.outcomes[(m.outcomes == x).logical_or(h).all(1)]:
                w = pz * p.gather(1, y[:, None])[h].prod()
                i = m.state(y[None])
                seen[i, h] += w; hit[i, h] += w * (x == y)[h].double()
    return hit / seen

def test_what_the_critic_learns():
    """The gradient vanishes at P(right | filled text), mixed over what was filled, and not at the
    oracle (Eq. 2)."""
    m, B = random_joint(3, 3, 2), 200_000
    states = m.state(m.outcomes)
    right = minimiser(m)[states]
    oracle = m(m.outcomes).quality().sigmoid()
    x = m.outcomes[torch.multinomial(m.joint.flatten(), B, True, generator=keyed(0, 1))]
    worst = {}
    for name, prob in (('minimiser', right), ('oracle', oracle)):
        critic = Table(m,
                       torch.zeros(4 ** 3, 3, dtype=torch.float64).index_copy(0, states,
                           prob.logit()))
        o = critic_objective(critic, m, 1.)
        z, u = o.noise(x, keyed(0, 0, 1))
        o(x, z, u)['loss'].backward()
        masked = z == m.mask_id
        y = z.masked_scatter(masked, nucleus(1.)(m(z).logits(masked), u[masked])[0])
        n = torch.zeros(4 ** 3, 3, dtype=torch.float64).index_add(0, m.state(y),
            masked.double())[states]
        # standard errors
        z_score = critic.g.grad[states] * masked.sum() / (n * prob * (1 - prob)).sqrt()
        worst[name] = z_score.abs().max().item()
    assert worst['minimiser'] < 5 and worst['oracle'] > 20, worst
