"""Caches: exact when refreshed in every step, audited when not, and no row runs in vain."""
from dataclasses import replace

import pytest
import torch

from navira.sampler.caching import Cached, Caching
from navira.diffusion import Denoiser
from navira.sampler.guidance import guided
from navira.sampler.joint import orchard
from navira.sampler.registry import policy
from navira.sampling import sample
from helpers.peers import state, WITHOUT_CRITIC
from toys import llama, small_lm

@pytest.mark.parametrize('name', WITHOUT_CRITIC)
def test_refreshed_in_every_step_it_is_no_cache(name):
    how = dict(n=3, seed=1, progress=False, length=12)
    for model in (small_lm(1).double(), llama()):
        plain = sample(model, policy(name), 24, **how)
        cached = sample(model, policy(name), 24, cache='changed', refresh=1, **how)
        assert torch.equal(plain.tokens, cached.tokens)
        assert torch.equal(plain.n_forward, cached.n_forward) and not cached.audit.found

@pytest.mark.parametrize('cache', ['prompt', 'changed'])
@pytest.mark.parametrize('shift', [False, True])
@pytest.mark.parametrize('name', ['backbone', 'mdlm', 'llada-low-confidence', 'remdm-cap'])
def test_with_one_block_nothing_can_go_stale(name, shift, cache):
    "Keys and values of one block are functions of a token and its place: a cache has no error"
    how = dict(prompt=[[1, 2], [4, 5, 6, 7]], max_new_tokens=6, seed=2, progress=False)
    one = llama(1, shift)
    for model, more in (one, {}), (one, dict(block_length=3)), (guided(one, 2.), {}):
        plain = sample(model, name, 24, **how, **more)
        cached = sample(model, name, 24, cache=cache, refresh=5, **how, **more)
        assert torch.equal(plain.tokens, cached.tokens)
        assert not cached.audit.found or cached.audit.summary()['max_kl'] < 1e-9

class Spy(Denoiser):
    "Remembers which positions ran"
    mask_id, length, n_blocks = 10, 12, 2
    def __init__(self): self.model, self.seen = small_lm(3), []
    def partial(self, x, cache, run, *how):
        self.seen.append(run)
        return self.model.partial(x, cache, run, *how)

@pytest.mark.parametrize('kind, refresh, masks, runs', [
    ('prompt', 4, 6, [4, 5, 6, 7, 8, 9, 10, 11]), ('changed', 4, 6, [5, 6, 7, 8, 9, 10, 11]),
    ('changed', 4, 1, [5, 11]), ('changed', 1, 6, [*range(12)])])
def test_what_runs_and_when(kind, refresh, masks, runs):
    "Four positions of a prompt, and an edit at position 5"
    spy = Spy()
    x = (torch.arange(12) % 10).masked_fill(torch.arange(12) >= 12 - masks, 10)
    st = state(x, 10, 0, 9, n=3, fixed=torch.arange(12) < 4)
    cached = Cached(spy, st.noise.samples, Caching(kind, refresh))
    cached.resume(st)                                             # full
    cached.resume(replace(st, i=1, x=st.x.index_fill(1, torch.tensor([5]), 9)))
    assert spy.seen[1][0].nonzero()[:, 0].tolist() == runs

def test_a_token_that_was_unsure_refreshes_its_text_alone():
    "Also where another row has left, and one comes that the last pass did not run"
    spy = Spy()
    x = torch.arange(48).view(4, 12) % 7
    st = state(x.masked_fill(torch.arange(12) >= 5, 10), 10, 0, 9)
    q = spy.model(st.x).logits(st.masked).softmax(-1).view(4, 7, -1)[:, 0]    # at position 5
    nats = -torch.xlogy(q, q).sum(-1)
    level = nats[1:3].mean().item()
    cached = Cached(spy, st.noise.samples, Caching('changed', unsure=level))
    cached.resume(st[:3])
    cached.resume(replace(st, i=1, x=st.x.index_fill(1, torch.tensor([5]), 9))[1:])
    # the audit's pass stands between
    whole = [run.all(1).tolist() for run in spy.seen]
    assert whole[0] == [True] * 3 and whole[-1] == [*(nats[1:3] > level).tolist(), True]

@pytest.mark.parametrize('cache', ['prompt', 'changed'])
@pytest.mark.parametrize('refresh', [1, 2, 4])
@pytest.mark.parametrize('prompt', [None, [1], [1, 2, 3, 4, 5, 6]])
def test_what_is_charged_pays_for_what_ran(cache, refresh, prompt):
    how = dict(prompt=prompt, length=12, n=2, progress=False)
    for name in ('backbone', 'prism', 'llada-low-confidence', 'best-of'):
        out = sample(small_lm(5).double(), name, 8, cache=cache, refresh=refresh, **how)
        assert out.n_forward.max() <= out.charged + 1e-9
        assert out.charged == 8 or f'{out.charged:.2f}'.rstrip('0') in out.cost
        if prompt is None and cache == 'prompt': assert out.charged == 8 == out.n_forward.max()

def test_a_model_that_runs_whole_texts_only():
    with pytest.raises(ValueError, match='Words runs whole texts only'):
        sample(orchard(), 'backbone', 8, 2, cache='changed')
    with pytest.warns(UserWarning, match='Words runs whole texts only'):
        assert sample(orchard(), 'navira-changed', 8, 2).charged == 8
