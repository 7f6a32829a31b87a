"""Token-Critic and G-Star: against loops, their budgets, and the critics that they refuse."""
import math

import pytest
import torch

from navira.base.noise import Noise
from navira.peers.critics import (
    g_star, token_critic)
from navira.sampling import sample
from toys import critic_like, everywhere, pick, small_lm, truncate

def loop(model, critic, x, T, seed, masks_of, late=lambda i: True, P=.9):
    "Fill and rate everything, `masks_of` says what becomes a mask; MDLM before it is `late`"
    M, (B, L) = model.mask_id, x.shape
    free = [(row == M).nonzero()[:, 0].tolist() for row in x]
    N = Noise(seed, torch.arange(B))
    for i in range(T):
        u = {k: N.uniform(i, k, L).tolist() for k in ('token', 'critic', 'flip', 'ties')}
        logits, y = everywhere(model, x)[0].double().softmax(-1), x.clone()
        for b in range(B):
            for j in free[b]:
                if x[b, j] != M or not (late(i) or u['flip'][b][j] < 1 / (T - i)): continue
                y[b, j] = pick(truncate(logits[b, j].tolist(), P), u['token'][b][j])
        if late(i):
            g, before = critic(y).quality().double(), x
            for b in range(B):
                noise = {k: v[b] for k, v in u.items()}
                masked = any(before[b, j] == M for j in free[b])
                for j in masks_of(g[b].tolist(), free[b], noise, i, masked): y[b, j] = M
        x = y
    return x

def texts(lm):
    x = torch.full((6, 12), lm.mask_id)
    x[1, :3] = 4; x[2, :11] = 2; x[3, ::2] = 5
    # with none given a row may be filled with one symbol, and only rounding orders its positions
    x[0, 6] = 7; x[4, 2] = 1; x[5, 9] = 8
    return x

@pytest.mark.parametrize('noise', [0., 2.])
@pytest.mark.parametrize('T', [1, 2, 5, 9])
def test_token_critic_is_its_loop(T, noise):
    lm = small_lm()
    c, x = critic_like(lm), texts(lm)
    def masks_of(g, free, u, i, masked):
        if not masked: return []
        rate = {j: g[j] + noise * (1 - (i + 1) / T) * (u['critic'][j] - .5) for j in free}
        k = math.ceil(len(free) * (i + 1) / T)
        return sorted(free, key=lambda j: (-rate[j], u['ties'][j]))[k:]
    expected = loop(lm, c, x, T, 3, masks_of)
    for batch in (1, 6):
        res = sample(lm, token_critic(c, noise), 2 * T, 6, 3, prompt=x, batch_size=batch)
        assert torch.equal(res.tokens, expected) and (res.n_forward <= 2 * T - 1).all()

@pytest.mark.parametrize('t_on, tau', [(.3, 1.), (.6, 0.), (1., .3), (0., 1.)])
@pytest.mark.parametrize('T', [2, 4, 9])
def test_g_star_is_its_loop(T, t_on, tau):
    lm = small_lm()
    c, x = critic_like(lm), texts(lm)
    def masks_of(g, free, u, i, masked):
        error = {j: -g[j] - tau * math.log(-math.log(u['critic'][j])) for j in free}
        n = math.ceil(len(free) * (T - i - 1) / T)
        return sorted(free, key=lambda j: (-error[j], -u['ties'][j]))[:n]
    expected = loop(lm, c, x, T, 3, masks_of, lambda i: T - i <= t_on * T + 1e-9)
    rule = g_star(c, t_on, tau)
    for batch in (1, 6):
        res = sample(lm, rule, rule.step.most(T), 6, 3, prompt=x, batch_size=batch)
        assert res.n_steps == T and torch.equal(res.tokens, expected)
        assert res.n_forward.max() <= rule.step.most(T)
