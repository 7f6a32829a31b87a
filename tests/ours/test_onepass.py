"""One pass: the distribution of whole runs with stored qualities, what is stored, and what every
run keeps."""
from dataclasses import replace
import pytest, torch
from navira.ours.onepass import onepass
from navira.sampler.registry import policy
from navira.sampling import sample
from toys import (
    Tiny)


# ---- Distributions


# ---- Reductions


@pytest.mark.parametrize('score', ['logit', 'probability'])
@pytest.mark.parametrize('tau', [0., .6])
def test_by_the_qualities_of_a_pass_of_its_own_it_is_navira(tau, score):
    model, hyper = Tiny(12, 5), dict(eta=.4, on=.2, tau=tau, score=score)
    one, two = onepass(**hyper), policy('navira', **hyper)
    fresh = replace(two, remask=replace(one.remask, score=two.remask.score))
    a, b = sample(model, fresh, 16, 6, 1), sample(model, two, 16, 6, 1)
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward)
    assert not torch.equal(sample(model, one, 8, 6, 1).tokens, b.tokens)

# ---- Parts
