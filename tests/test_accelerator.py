"""On a pretended accelerator (helpers/pretended.py): it refuses what CUDA refuses, and what
runs on it gives the CPU's results."""
import numpy as np
import pytest
import torch

from navira.models.critic import Critic
from navira.sampler.draws import constants
from navira.sampler.registry import parameters, policies, policy
from navira.sampling import sample
from helpers.peers import KINDS
from helpers.pretended import Pretended
from toys import small_lm

@pytest.fixture(autouse=True)
def alone(one_thread): constants.cache_clear()

HOW = dict(budget=6, n=2, prompt=[3, 10, 5, 7], trace=True)

def lm(): return small_lm(3, model_length=8).double()

def rule(name, model):
    own = 'critic' in parameters(policies()[name])
    return policy(name, **(dict(critic=Critic.of(model, 1)) if own else {}))

@pytest.mark.parametrize('name', KINDS)
def test_a_policy_gives_on_the_accelerator_what_it_gives_on_the_cpu(name):
    model = lm()
    a = sample(model, rule(name, model), **HOW)
    with Pretended() as gpu:
        b = sample(model.to('cuda'), rule(name, model), **HOW)
        assert all(map(gpu.on, model.parameters())) and not b.tokens.is_cuda
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward,
                                                           b.n_forward) and a.n_steps == b.n_steps
    for k in ('x', 'remasked', 'unmasked', 'score', 'tau', 'fixed'):
        np.testing.assert_allclose(getattr(a.trace, k), getattr(b.trace, k), atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(),
                    reason='no GPU here; `make gpu` runs it where there is one')
def test_every_policy_on_a_real_gpu():
    for name in sorted(policies()):
        model = lm()
        a, b = (sample(model.to(k), rule(name, model), **HOW) for k in ('cpu', 'cuda'))
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward), name
        with torch.autocast('cuda', torch.bfloat16):
            c = sample(model.float(), rule(name, model), **HOW)
            assert (c.tokens != model.mask_id).all(), name
