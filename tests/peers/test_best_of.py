"""The best of several texts: against texts written one by one; trace, blocks, budgets."""
from dataclasses import replace

import torch
from hypothesis import given, settings, strategies as hs

from navira.base.noise import Noise
from navira.sampler.registry import policy
from navira.sampling import sample
from helpers.peers import run, started
from toys import Tiny

BASES = 'backbone', 'prism', 'navira-onepass', 'mask-predict'

def based(base):
    hot = dict(temperature=1.) if base == 'mask-predict' else {}
    return policy(base, top_p=.9, **hot)

class Renamed(Noise):
    "Numbers for other purposes"
    def __init__(self, seed, samples, draft):
        super().__init__(seed, samples)
        self.draft = draft
    def uniform(self, i, purpose, length):
        if self.draft: purpose = f'{purpose}, draft {self.draft}'
        return super().uniform(i, purpose, length)

def one_by_one(model, base, n, rated, x, budget, seed):
    "For each row its best drafts, several if tied, and all passes: written one after the other"
    tokens, passes = [], []
    for b in range(len(x)):
        drafts, ran = [], 0
        for j in range(n):
            st = started(x[b:b + 1], model.mask_id, budget // n - rated)
            st = run(based(base), replace(st, noise=Renamed(seed, torch.tensor([b]), j)), model)
            free, ran = ~st.fixed[0], ran + int(st.n_forward) + rated
            score = model(st.x).quality().sigmoid()[0] if rated else st.conf[0]
            drafts.append((score[free].double().mean().item(), st.x[0].tolist()))
        best = max(drafts)[0]
        tokens.append([y for score, y in drafts if score > best - 1e-9])
        passes.append(ran)
    return tokens, passes

@settings(max_examples=16)
@given(hs.sampled_from(BASES), hs.integers(1, 4), hs.booleans(), hs.integers(0, 40),
       hs.integers(0, 7))
def test_it_is_the_best_of_texts_written_one_by_one(base, n, rated, seed, more):
    model, x = Tiny(9, 6, seed=seed), torch.full((3, 9), 6)
    x[1, [0, 3]], x[2, 1:7] = 1, 2
    budget = n * (1 + rated) + more
    how = dict(base=base, drafts=n, score='quality' if rated else 'confidence')
    out = sample(model, 'best-of', budget, prompt=x, seed=seed, **how)
    tokens, passes = one_by_one(model, base, n, rated, x, budget, seed)
    assert all(y in best for y, best in zip(out.tokens.tolist(), tokens))
    assert out.n_forward.tolist() == passes and max(passes) <= budget and out.n_steps == budget // n
