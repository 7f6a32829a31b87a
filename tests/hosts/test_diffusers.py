"`LLaDA2Pipeline` of diffusers by any policy."
import os

import pytest
import torch

if os.environ.get('CI') != 'true': pytest.importorskip('diffusers')   # CI installs it
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline

from navira.base.noise import Noise
from navira.sampler.budgets import n_steps
from navira.diffusion import Denoiser
from navira.hosts.diffusers import NaviraScheduler
from navira.hosts.from_logits import hosted, Ran
from navira.sampling import states
from helpers.hosts import MASK, served, V

B = 32
PROMPT = torch.arange(2, 11)[None]

@pytest.fixture(scope='module')
def net(): return served()

def piped(net, scheduler, ids=PROMPT, seed=0, gen_length=2 * B - 9, **how):
    "Ids that the pipeline writes after a prompt"
    pipe = LLaDA2Pipeline(net, scheduler)
    pipe.set_progress_bar_config(disable=True)
    how = dict(eos_early_stop=False, generator=torch.Generator().manual_seed(seed)) | how
    return pipe(input_ids=ids, gen_length=gen_length, output_type='seq', mask_token_id=MASK,
                **how).sequences

class Behind(Denoiser):
    "The network on a block, behind what stands before it"
    mask_id, length = MASK, B
    def __init__(self, net, text): self.net, self.text = net, text
    def __call__(self, x):
        logits = self.net(torch.cat([self.text, x], 1)).logits[:, -B:]
        return Ran(x, logits, MASK, torch.arange(len(x)))

def own(net, name, ids=PROMPT, seed=0, passes=B, n_blocks=2):
    "The same by the library's own loop, block by block, each after what stands before it"
    seed = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(seed)))
    text, noise = torch.full((len(ids), 0), 0), Noise(seed, torch.arange(len(ids)))
    for b in range(n_blocks):
        x = torch.full((len(ids), B), MASK)
        if b == 0: x[:, :ids.shape[1]] = ids
        rule, model = hosted(name, {}, B, passes), Behind(net, text)
        T = n_steps(rule, passes, (x == MASK).sum(1))
        for st in states(rule, model, x, T, noise): pass
        text, noise = torch.cat([text, st.x], 1), noise.after(T)
    return text[:, ids.shape[1]:]

@torch.no_grad()
@pytest.mark.parametrize('name', ['remdm-conf', 'mdlm', 'entropy-remask'])
def test_the_pipeline_writes_what_the_own_loop_writes(net, name):
    "Two blocks of 32, one with the prompt in it; `entropy-remask` has a second pass"
    out = piped(net, NaviraScheduler(name))
    assert out.shape == (1, 2 * B - 9) and (out != MASK).all()
    assert torch.equal(out, own(net, name))


@pytest.mark.parametrize('n', [4, 32])
@pytest.mark.parametrize('threshold, edit', [(.7, .5), (.2, .1), (.95, None)])
def test_block_refinement_is_the_scheduler_of_diffusers(net, n, threshold, edit):
    how = dict(threshold=threshold, editing_threshold=edit)
    theirs = piped(net, BlockRefinementScheduler(), num_inference_steps=n, **how)
    ours = piped(net, NaviraScheduler('block-refinement', how), num_inference_steps=n)
    assert torch.equal(ours, theirs)


def test_a_scheduler_is_saved_and_loaded_alone_and_in_a_pipeline(net, tmp_path):
    one = NaviraScheduler('p2', dict(eta=2., top_p=.9), block_length=16)
    one.save_pretrained(tmp_path/'alone')
    LLaDA2Pipeline(net, one).save_pretrained(tmp_path/'pipe')
    want = piped(net, one)
    assert torch.equal(want, piped(net, NaviraScheduler.from_pretrained(tmp_path/'alone')))
    again = LLaDA2Pipeline.from_pretrained(tmp_path/'pipe')
    assert isinstance(again.scheduler, NaviraScheduler)
    assert torch.equal(want, piped(net, again.scheduler))
    other = NaviraScheduler.from_config(BlockRefinementScheduler(block_length=8).config,
                                        policy='p2')
    assert (other.config.block_length, other.config.policy) == (8, 'p2')

def test_a_finished_text_no_longer_changes_and_all_finished_stop(net):
    "An end ends a text with its block: the other row goes on"
    calls, ids = [], PROMPT.repeat(2, 1)
    hook = net.register_forward_hook(lambda *_: calls.append(1))
    scheduler = NaviraScheduler('remdm-conf')
    kept = piped(net, scheduler, ids, gen_length=3 * B - 9)
    first = kept[0, :B - 9]
    end = next(v for v in first.tolist() if v not in kept[1, :B - 9] and v > 10)
    out = piped(net, scheduler, ids, gen_length=3 * B - 9, eos_early_stop=True, eos_token_id=end)
    assert torch.equal(out[0, :B - 9], first) and (out[0, B - 9:] == MASK).all()
    assert torch.equal(out[1, :B - 9], kept[1, :B - 9]) and (out[1, B - 9:2 * B - 9] != MASK).all()
    calls.clear()
    alone = piped(net, scheduler, gen_length=3 * B - 9, eos_early_stop=True, eos_token_id=end)
    hook.remove()
    assert len(calls) <= B and (alone[0, B - 9:] == MASK).all()

def test_settings_and_policies_that_would_have_no_effect_are_refused(net):
    scheduler = NaviraScheduler('remdm-conf')
    for more in (dict(temperature=.5), dict(top_p=.9), dict(threshold=.9), dict(top_k=3),
                 dict(editing_threshold=None)):
        with pytest.raises(ValueError, match=f'{[*more][-1]}='): piped(net, scheduler, **more)
    for name in ('wino', 'navira-det', 'g-star', 'best-of'):
        with pytest.raises(ValueError, match=f"'{name}' needs"): NaviraScheduler(name)
    with pytest.raises(KeyError, match='remdm-conf'): NaviraScheduler('remdm_conf')
    with pytest.raises(ValueError, match='mask_token_id'):
        scheduler.step(torch.zeros(1, B, V), 0, torch.full((1, B), MASK))
    with pytest.raises(ValueError, match='budget'):
        NaviraScheduler('entropy-remask', num_inference_steps=1).step(
            torch.zeros(1, B, V), 0, torch.full((1, B), MASK), mask_token_id=MASK)
