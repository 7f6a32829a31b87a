"""On a pretended accelerator (helpers/pretended.py): it refuses what CUDA refuses, and what
runs on it gives the CPU's results."""
import sys

import numpy as np
import pytest
import torch

from navira.base import parallel
from navira.base.noise import Noise
from navira.core import State, step
from navira.models.critic import Critic
from navira.sampler.draws import constants
from navira.sampler.registry import parameters, policies, policy
from navira.sampling import sample
from helpers.peers import KINDS
from helpers.pretended import Pretended
from toys import small_lm

@pytest.fixture(autouse=True)
def alone(one_thread): constants.cache_clear()

def lm(**kw): return small_lm(3, model_length=8, **kw).double()

def rule(name, model):
    own = 'critic' in parameters(policies()[name])
    return policy(name, **(dict(critic=Critic.of(model, 1)) if own else {}))

@pytest.mark.parametrize('name', KINDS)
def test_a_policy_gives_on_the_accelerator_what_it_gives_on_the_cpu(name):
    model = lm()
    given = dict(budget=6, n=2, prompt=[3, model.mask_id, 5, 7], trace=True)
    a = sample(model, rule(name, model), **given)
    with Pretended() as gpu:
        b = sample(model.to('cuda'), rule(name, model), **given)
        assert all(map(gpu.on, model.parameters())) and not b.tokens.is_cuda
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward,
                                                           b.n_forward) and a.n_steps == b.n_steps
    for k in ('x', 'remasked', 'unmasked', 'score', 'tau', 'fixed'):
        np.testing.assert_allclose(getattr(a.trace, k), getattr(b.trace, k), atol=1e-6)


@pytest.mark.parametrize('name', [
    'navira', 'prism', 'remdm-cap', 'remdm-conf', 'p2', 'dream-entropy', 'llada-low-confidence',
    'navira-det-changed', 'eb', 'mdlm'])
def test_a_step_waits_for_the_accelerator_only_where_it_reads(name, monkeypatch):
    reads, T, read = [], 16, parallel.read
    for m in [m for m in sys.modules.values() if vars(m).get('read') is read]:
        monkeypatch.setattr(m, 'read', lambda a: (reads.append(a), read(a))[1])
    with Pretended() as gpu, torch.inference_mode():
        model = lm().to('cuda')
        st = State.start(torch.full((2, 8), model.mask_id, device='cuda'), model.mask_id, T,
                         Noise(0, torch.arange(2, device='cuda')))
        gpu.waits = 0
        for _ in range(T): st = step(policy(name), st, model)
    assert gpu.waits == len(reads) <= 6 * T


@pytest.mark.skipif(not torch.cuda.is_available(),
                    reason='no GPU here; `make gpu` runs it where there is one')
def test_every_policy_on_a_real_gpu():
    for name in sorted(policies()):
        model = lm()
        given = dict(budget=6, n=2, prompt=[3, model.mask_id, 5, 7], trace=True)
        a = sample(model, rule(name, model), **given)
        b = sample(model.to('cuda'), rule(name, model), **given)
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward), name
        with torch.autocast('cuda', torch.bfloat16):
            assert (sample(model.float(), rule(name, model),
                           **given).tokens != model.mask_id).all(), name
