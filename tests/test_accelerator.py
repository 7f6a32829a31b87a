"""On an accelerator that is pretended (pretended.py): it refuses what CUDA refuses, and what
runs on it gives the CPU's results."""
import numpy as np
import pytest
import torch

from navira.evaluation.perplexity import perplexity, Reference
from navira.hosts.from_logits import policy_step, start
from navira.models.critic import Critic
from navira.registry import parameters, policies, policy
from navira.sampling import sample
from helpers.peers import KINDS
from helpers.metrics import llama, tokenizer as words
from pretended import Pretended
from toys import small_lm

@pytest.fixture(autouse=True)
def alone(one_thread): pass

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


@pytest.mark.parametrize('most', [3, 1])
def test_batches_that_do_not_fit_are_halved_and_give_the_same_texts(most):
    model, tried, shown = lm(), [], []
    given = dict(budget=6, n=6, prompt=[3])
    whole, run = sample(model, 'navira', **given), model.forward
    def limited(x):
        tried.append(len(x))
        if len(x) > most: raise torch.OutOfMemoryError('CUDA out of memory')
        return run(x)
    model.forward = limited
    with Pretended():
        out = sample(model.to('cuda'), 'navira', progress=lambda t: shown.append(len(t)), **given)
    assert torch.equal(out.tokens, whole.tokens) and torch.equal(out.n_forward, whole.n_forward)
    assert max(tried) == 6 and sum(shown) == 6 * out.n_steps


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


def test_perplexity_is_on_the_accelerator_what_it_is_on_the_cpu():
    texts = ['w1 w2 w3 w4 w5', 'w9 w8 w7', 'w4 w4 w4 w4']
    def measured(device): return perplexity(texts, Reference(llama().to(device), words())).nll
    here = measured('cpu')
    with Pretended(): np.testing.assert_allclose(measured('cuda'), here, rtol=1e-4)


@pytest.mark.parametrize('name', ['remdm-conf', 'entropy-remask', 'proseco', 'block-refinement'])
def test_a_host_s_logits_may_be_on_the_accelerator(name):
    "So may its ids: then what it gets back is, too"
    model = lm()
    def written(device, model):
        ids = torch.tensor([[3, model.mask_id, 5] + [model.mask_id] * 5] * 2, device=device)
        memory = start(policy(name), ids, model.mask_id, 6, 1)
        while not memory.done:
            logits = model(ids).logits(torch.ones_like(ids, dtype=torch.bool))
            ids, memory = policy_step(ids, logits.unflatten(0, ids.shape), None, memory)
        return ids
    here = written('cpu', model)
    with Pretended() as gpu:
        there = written('cuda', model.to('cuda'))
        assert gpu.on(there) and here.tolist() == there.tolist()
