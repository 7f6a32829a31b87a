"""The second pass over what changed: what it gives, what it runs, what it is charged."""
from dataclasses import replace

import pytest
import torch

from navira.prism import prism
from navira.sampler.registry import policy
from navira.sampling import sample
from helpers.peers import run, started
from toys import small_lm

X = torch.full((4, 12), 10)
X[0, :3] = torch.tensor([1, 2, 3])

OFTEN = dict(eta=.5, on=0.)

@pytest.mark.parametrize('name, hyper', [
    ('navira', OFTEN), ('navira-det', OFTEN), ('navira-piecewise', OFTEN),
    ('margin-remask', OFTEN), ('informed-corrector', {})])
def test_with_every_block_in_full_it_is_the_full_second_pass(name, hyper):
    model, rule = small_lm(1).double(), policy(name, **hyper)
    full, deep = (run(r, started(X, 10, 6, 3), model) for r in (rule, replace(rule, depth=2)))
    assert torch.equal(full.x, deep.x) and torch.equal(full.n_forward, deep.n_forward)
    torch.testing.assert_close(full.conf, deep.conf, rtol=1e-10, atol=1e-12, equal_nan=True)

@pytest.mark.parametrize('depth', [0, 1])
def test_it_runs_what_was_remasked_and_what_is_drawn(depth):
    model, costs = small_lm(3, n_blocks=4).double(), []
    def watch(rule, before, p, clean, after):
        T, S = before.committed & clean.masked, clean.masked & ~after.masked
        share = (2 * depth + (4 - 2 * depth) * (T | S).double().mean(1)) / 4
        ran = torch.from_numpy(p.ran)
        costs.append(ran + torch.where(T.any(1), share, ~ran * 1.))
    st = run(replace(policy('navira-det', **OFTEN), depth=depth), started(X, 10, 6, 3), model,
             watch)
    # a row that remasks nothing runs one pass, the one that predicts
    torch.testing.assert_close(st.n_forward, sum(costs))
    assert st.n_forward.max() < 2 * st.n and (st.n_forward % 1 > 0).any()

@pytest.mark.parametrize('make, says', [
    (lambda: replace(prism(), depth=0), 'expected a decoupled policy'),
    (lambda: replace(policy('navira'), depth=-1), 'depth=-1: expected a whole number of at least'),
    (lambda: sample(small_lm(), replace(policy('navira-changed'), depth=3), 8, 2),
     'has 2 blocks; expected a whole number of at least 0 and at most 2')])
def test_a_depth_that_cannot_be(make, says):
    with pytest.raises(ValueError, match=says): make()
