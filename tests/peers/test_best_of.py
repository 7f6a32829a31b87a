"""The best of several texts, against texts written one by one."""
from dataclasses import replace

import torch
from hypothesis import given, settings, strategies as hs

from navira.base.noise import Noise
from navira.sampler.registry import policy
from navira.sampling import sample
from helpers.peers import run, started
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
        best, ran = one_by_one(model, rule, n, rated, x[b:b + 1], budget // n - rated, noise)
        assert got in best and passes == ran
