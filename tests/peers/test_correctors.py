"""The informed corrector and CORE against their loops; what CORE's budget pays for."""
import math

import torch
from hypothesis import given, strategies as hs

from navira.base.noise import Noise
from navira.sampler.draws import nucleus
from navira.sampler.registry import grids, policy
from navira.sampling import sample
from helpers.peers import everywhere, prompts, Raw, run, started

def corrected(model, x, T, seed, k, tau, kind):
    "The informed corrector for one row: T - 1 predictor steps, a correction after each"
    x, M, N, draw = x.clone(), model.mask_id, Noise(seed, torch.tensor([0])), nucleus(1.)
    free, grid = (x == M).nonzero()[:, 0].tolist(), grids['cosine']
    for i in range(T):
        purposes = 'gumbel', 'redraw', 'flip', 'token', 'ties'
        u = {name: N.uniform(i, name, len(x))[0] for name in purposes}
        clean = [j for j in free if x[j] != M]
        if clean and k:
            p, score = everywhere(model, x).double(), {}
            for j in clean:
                c = math.log(p[j, x[j]])
                if kind == 'margin': c -= math.log(max(p[j, v] for v in range(M) if v != x[j]))
                noise = -math.log(-math.log(u['gumbel'][j]))
                score[j] = -c / tau + noise if tau else -c
            for j in sorted(clean, key=lambda j: (-score[j], u['ties'][j].item()))[:k]:
                x[j] = draw(p[j:j + 1].log(), u['redraw'][j:j + 1])[0]
        rate = (grid(i + 1, T - 1) - grid(i, T - 1)) / (1 - grid(i, T - 1)) if i < T - 1 else 1.
        new = [j for j in free if x[j] == M and u['flip'][j] < rate]
        if new: x[new] = draw(everywhere(model, x)[new].log(), u['token'][new])[0]
    return x

@given(hs.integers(1, 8), hs.integers(2, 5), hs.integers(0, 2**40), hs.integers(1, 8),
       hs.integers(0, 4), hs.sampled_from([0., .3, 1.]), hs.sampled_from(['margin', 'confidence']))
def test_the_informed_corrector_is_its_loop(L, V, seed, budget, k, tau, kind):
    model, x = Raw(L, V, seed=seed % 97), prompts(L, V, seed, 1)
    hyper = dict(k=k, tau=tau, score=kind)
    out = sample(model, 'informed-corrector', 2 * budget, 1, seed, prompt=x, **hyper)
    assert torch.equal(out.tokens[0], corrected(model, x[0], budget + 1, seed, k, tau, kind))

# ---- core

def core_loop(model, x, T, m, k, every, threshold, protect):
    "CORE's loop for one row at temperature 0: ids, passes, tokens replaced"
    x, M, n, replaced = x.clone(), model.mask_id, 0, 0
    free = [j for j in range(len(x)) if x[j] == M]
    base, rest = divmod(len(free), T)
    best = lambda q: max(range(len(q)), key=q.__getitem__)
    for i in range(T):
        fill = base + (i < rest)
        if not fill: continue
        p, masks, put = everywhere(model, x).tolist(), [j for j in free if x[j] == M], {}
        n += 1
        if every and k and i and i % every == 0 and int(.25 * T) <= i < int(.75 * T):
            open_ = [j for j in free[:len(free) - protect] if x[j] != M]
            lead = {j: max(p[j]) - sorted(p[j])[-2] for j in open_}
            C = sorted(lead, key=lead.get)[:m]
            if C:
                seen = x.clone()
                seen[C] = M
                q, n = everywhere(model, seen).tolist(), n + 1
                ok = [j for j in C if best(q[j]) != x[j] and max(q[j]) >= threshold]
                worst = sorted(ok, key=lambda j: q[j][x[j]])[:min(k, fill)]
                put, replaced = {j: best(q[j]) for j in worst}, replaced + len(worst)
        for j in sorted(masks, key=lambda j: -max(p[j]))[:fill]: put[j] = best(p[j])
        for j, v in put.items(): x[j] = v
    return x, n, replaced

how = hs.fixed_dictionaries(dict(
    m=hs.integers(0, 9), k=hs.integers(0, 3), every=hs.integers(0, 4),
    threshold=hs.sampled_from([0., .3, .6]), protect=hs.sampled_from([0, 3, 16])))

@given(hs.integers(0, 2**40), hs.integers(1, 12), how)
def test_core_is_its_loop(seed, T, hyper):
    model, x = Raw(10, 5, seed=seed % 97), prompts(10, 5, seed, 1)
    st = run(policy('core', **hyper), started(x, 5, T, seed), model)
    want, n, _ = core_loop(model, x[0], T, **hyper)
    assert torch.equal(st.x[0], want) and st.n_forward[0] == n
