"""The best of several texts and the best of several sets, against loops."""
from dataclasses import replace

import torch
from hypothesis import given, settings, strategies as hs

from navira.base.noise import Noise
from navira.peers.best_of import info_gain
from navira.sampler.registry import policy
from navira.sampling import sample
from helpers.peers import at_masks, best, prefixes, run, started
from toys import Tiny

class Renamed(Noise):
    "Numbers for the purposes of a draft"
    draft = 0
    def uniform(self, i, purpose, length):
        return super().uniform(i, purpose + f', draft {self.draft}' * (self.draft > 0), length)

def one_by_one(model, rule, n, rated, x, T, noise): # x [1, L]
    "The best drafts of a row, several if tied, and all passes"
    drafts, ran = [], 0
    for noise.draft in range(n):
        st = run(rule, replace(started(x, model.mask_id, T), noise=noise), model)
        score = model(st.x).quality().sigmoid() if rated else st.conf
        drafts.append((score[~st.fixed].double().mean().item(), st.x[0].tolist()))
        ran += int(st.n_forward) + rated
    return [y for score, y in drafts if score > max(drafts)[0] - 1e-9], ran

@settings(max_examples=16)
@given(hs.sampled_from(['backbone', 'prism', 'navira-onepass', 'mask-predict']),
       hs.integers(1, 4), hs.booleans(), hs.integers(0, 40), hs.integers(0, 7))
def test_it_is_the_best_of_texts_written_one_by_one(base, n, rated, seed, more):
    model, x = Tiny(9, 6, seed=seed), torch.full((3, 9), 6)
    x[1, [0, 3]], x[2, 1:7] = 1, 2
    budget = n * (1 + rated) + more
    how = dict(base=base, drafts=n, score='quality' if rated else 'confidence')
    out = sample(model, 'best-of', budget, prompt=x, seed=seed, **how)
    assert out.n_steps == budget // n and out.n_forward.max() <= budget
    rule = policy(base, temperature=1., top_p=.9)
    for b, (got, passes) in enumerate(zip(out.tokens.tolist(), out.n_forward)):
        noise = Renamed(seed, torch.tensor([b]))
        drafts, ran = one_by_one(model, rule, n, rated, x[b:b + 1], budget // n - rated, noise)
        assert got in drafts and passes == ran

# ---- Info-Gain, at temperature 0

def nats(q): return -(q[:-1] * q[:-1].log()).sum().item()         # the mask, last, has 0

def looking_ahead(model, x, T, n, tau, level, noise): # one row; ids and passes
    x, passes, N = x.clone(), 1, int((x == model.mask_id).sum())
    q = at_masks(model, x)
    for i in range(T):
        k, c = N // T + (i < N % T), {j: v.max().item() for j, v in q.items()}
        sets = [best(c, k)]
        for g in range(1, n):
            u = noise.uniform(i, f'set {g}', len(x))[0]
            sets.append(best({j: c[j] / tau - (-u[j].log()).log().item() for j in c}, k))
        if min(c.values()) >= level: sets = [list(c)]
        tried = []
        for S in sorted({tuple(sorted(S)) for S in sets}):
            y = x.clone()
            for j in S: y[j] = q[j].argmax()
            then = at_masks(model, y)
            rest = [nats(v) for v in then.values()]
            passes += bool(rest)
            J = -sum(nats(q[j]) for j in S) - sum(rest) / max(1, len(rest))
            tried.append((J, y, then))
        _, x, q = max(tried, key=lambda t: t[0])
        if not q: break
    return x, passes

@settings(max_examples=25)
@given(hs.integers(0, 60), hs.sampled_from([0, 3]), hs.integers(2, 5), hs.integers(1, 5),
       hs.sampled_from([.05, .2, 1.]), hs.sampled_from([.5, .8, 1.]), hs.integers(0, 3))
def test_info_gain_is_its_loop(seed, P, T, n, tau, level, more):
    model, x = Tiny(9, 5, seed=seed, sharp=2.), prefixes(9, 5, P, 7 - P)
    rule = info_gain(n, tau, level)
    out = sample(model, rule, max(n, 1 + (T - 1) * n) + more % n, seed=seed, prompt=x)
    for b, (row, got, passes) in enumerate(zip(x, out.tokens, out.n_forward)):
        noise = Noise(seed, torch.tensor([b]))
        want, ran = looking_ahead(model, row, out.n_steps, n, tau, level, noise)
        assert torch.equal(got, want) and passes == ran
