"""G-Star against its loop. At t_on=1, tau=0 it is Token-Critic, which the page enumerates."""
import math

import pytest
import torch

from navira.base.noise import Noise
from navira.peers.critics import g_star
from navira.sampling import sample
from toys import critic_like, everywhere, pick, small_lm, truncate

def loop(model, critic, x, T, seed, t_on, tau):
    "MDLM while t is above t_on; then all is filled and rated, and the worst become masks again"
    M, (B, L) = model.mask_id, x.shape
    free = [(row == M).nonzero()[:, 0].tolist() for row in x]
    N = Noise(seed, torch.arange(B))
    for i in range(T):
        u = {k: N.uniform(i, k, L).tolist() for k in ('token', 'critic', 'flip', 'ties')}
        late = T - i <= t_on * T + 1e-9
        p, y = everywhere(model, x)[0].double().softmax(-1), x.clone()
        for b in range(B):
            for j in free[b]:
                if x[b, j] != M or not (late or u['flip'][b][j] < 1 / (T - i)): continue
                y[b, j] = pick(truncate(p[b, j].tolist(), .9), u['token'][b][j])
        g = critic(y).quality().double().tolist()
        for b in range(B if late else 0):
            error = {j: -g[b][j] - tau * math.log(-math.log(u['critic'][b][j])) for j in free[b]}
            worst = sorted(free[b], key=lambda j: (-error[j], -u['ties'][b][j]))
            for j in worst[:math.ceil(len(free[b]) * (T - i - 1) / T)]: y[b, j] = M
        x = y
    return x

@pytest.mark.parametrize('t_on, tau', [(.3, 1.), (.6, 0.), (1., .3), (0., 1.)])
@pytest.mark.parametrize('T', [2, 4, 9])
def test_g_star_is_its_loop(T, t_on, tau):
    lm = small_lm()
    x = torch.full((6, 12), lm.mask_id)
    x[1, :3], x[2, :11], x[3, ::2] = 4, 2, 5
    # a row filled with one symbol would be ordered by rounding
    x[0, 6], x[4, 2], x[5, 9] = 7, 1, 8
    critic = critic_like(lm)
    rule = g_star(critic, t_on, tau)
    out = sample(lm, rule, rule.step.most(T), 6, 3, prompt=x)
    assert out.n_steps == T and out.n_forward.max() <= rule.step.most(T)
    assert torch.equal(out.tokens, loop(lm, critic, x, T, 3, t_on, tau))
