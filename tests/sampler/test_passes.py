"""The second pass over what changed: what it gives, what it runs, what it is charged."""
from dataclasses import replace

import pytest
import torch

from navira.base.noise import Noise
from navira.core import Policy, State, step
from navira.prism import prism
from navira.sampler.registry import parameters, policies, policy
from navira.sampling import sample
from toys import small_lm

def decoupled():
    for name, factory in policies().items():
        try: rule = factory()
        except (TypeError, ValueError): continue          # it needs a file, or another argument
        if rule.passes == 2 and rule.decoupled: yield name

DECOUPLED = sorted(decoupled())

def corrected(name):
    known = parameters(policies()[name])
    return policy(name, **{k: v for k, v in dict(eta=.5, on=0.).items() if k in known})

def run(rule, model, T=6, rows=4, watch=None):
    x = torch.full((rows, model.length), model.mask_id)
    x[0, :3] = torch.tensor([1, 2, 3])
    st = State.start(x, model.mask_id, T, Noise(3, torch.arange(rows)))
    while st.i < T: st = step(rule, st, model, *[watch] * bool(watch))
    return st

@pytest.mark.parametrize('name', DECOUPLED)
def test_with_every_block_in_full_it_is_the_full_second_pass(name):
    model, rule = small_lm(1).double(), corrected(name)
    full = run(rule, model)
    deep = run(replace(rule, depth=2), model)
    assert torch.equal(full.x, deep.x) and torch.equal(full.n_forward, deep.n_forward)
    torch.testing.assert_close(full.conf, deep.conf, rtol=1e-10, atol=1e-12,
                               equal_nan=True)


@pytest.mark.parametrize('depth', [0, 1])
def test_it_runs_what_was_remasked_and_what_is_drawn(depth):
    model, costs = small_lm(3, n_blocks=4).double(), []
    def watch(rule, before, p, clean, after):
        T, S = before.committed & clean.masked, clean.masked & ~after.masked
        share = (2 * depth + (4 - 2 * depth) * (T | S).double().mean(1)) / 4
        costs.append(p.ran + torch.where(T.any(1), share, ~p.ran * 1.))
    st = run(replace(policy('navira-det', eta=.5, on=0.), depth=depth), model,
             watch=watch)
    # a row that remasks nothing runs one pass, the one that predicts
    torch.testing.assert_close(st.n_forward, sum(costs))
    assert st.n_forward.max() < 2 * st.n and (st.n_forward % 1 > 0).any()


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match='expected a decoupled policy'):
        replace(prism(), depth=0)
    with pytest.raises(ValueError, match='depth=-1: expected a whole number of at least 0'):
        replace(policy('navira'), depth=-1)
    with pytest.raises(ValueError, match='has 2 blocks; expected a whole number of at least 0 and '
                                         'at most 2'):
        sample(small_lm(), replace(policy('navira-changed'), depth=3), 8, 2)
    assert Policy.depth is None
