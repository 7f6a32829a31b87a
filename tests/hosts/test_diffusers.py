"`LLaDA2Pipeline` of diffusers by any policy."
import os

import pytest
import torch

if os.environ.get('CI') != 'true': pytest.importorskip('diffusers')   # CI installs it
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline

from navira.hosts.diffusers import NaviraScheduler
from navira.hosts.servers import hosted
from helpers.hosts import behind, MASK, run, served, V

B = 32
PROMPT = torch.arange(2, 11)[None]

@pytest.fixture(scope='module')
def net(): return served()

def piped(net, scheduler, ids=PROMPT, gen_length=2 * B - 9, **how):
    "Ids that the pipeline writes after a prompt"
    pipe = LLaDA2Pipeline(net, scheduler)
    pipe.set_progress_bar_config(disable=True)
    how = dict(eos_early_stop=False, generator=torch.Generator().manual_seed(0)) | how
    return pipe(input_ids=ids, gen_length=gen_length, output_type='seq', mask_token_id=MASK,
                **how).sequences

@pytest.mark.parametrize('name', ['remdm-conf', 'mdlm', 'entropy-remask'])
def test_the_pipeline_writes_what_a_host_s_loop_writes(net, name):
    "Two blocks of 32, one with the prompt in it; `entropy-remask` has a second pass"
    seed = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(0)))
    text, memory = PROMPT[:, :0], None
    for given in PROMPT, PROMPT[:, :0]:
        x = torch.cat([given, torch.full((1, B - given.shape[1]), MASK)], 1)
        memory, _ = run(hosted(name, {}, B, B), x, behind(net, text), budget=B, seed=seed,
                        after=memory)
        text = torch.cat([text, memory.st.x], 1)
    assert (text != MASK).all() and torch.equal(text[:, 9:], piped(net, NaviraScheduler(name)))

@pytest.mark.parametrize('name, n', [
    ('remdm-conf', 7), ('remdm-conf', B - 9), ('mdlm', 7), ('entropy-remask', 7),
    ('fast-dllm', B - 9)])        # the pipeline takes no more steps than new tokens
def test_a_loop_over_timesteps_writes_what_the_pipeline_writes(net, name, n):
    "As for any scheduler of diffusers; a policy may be done early, or pass twice a step"
    new, x = B - 9, torch.cat([PROMPT, torch.full((1, B - 9), MASK)], 1)
    expected = piped(net, NaviraScheduler(name), gen_length=new, num_inference_steps=n)
    scheduler = NaviraScheduler(name, mask_token_id=MASK)
    scheduler.set_timesteps(n)
    torch.manual_seed(0)
    assert len(scheduler.timesteps) == n and scheduler.timesteps[-1] == 0
    for t in scheduler.timesteps: x = scheduler.step(net(x).logits, t, x).prev_sample
    assert torch.equal(x[:, 9:], expected) and (x != MASK).all()

@pytest.mark.parametrize('n', [4, 32])
@pytest.mark.parametrize('threshold, edit', [(.7, .5), (.2, .1), (.95, None)])
def test_block_refinement_is_the_scheduler_of_diffusers(net, n, threshold, edit):
    how = dict(threshold=threshold, editing_threshold=edit)
    theirs = piped(net, BlockRefinementScheduler(), num_inference_steps=n, **how)
    ours = piped(net, NaviraScheduler('block-refinement', how), num_inference_steps=n)
    assert torch.equal(ours, theirs)

@pytest.mark.parametrize('pads', [slice(0, 4), slice(5, 9)], ids=['left', 'right'])
def test_padding_of_a_shorter_prompt_is_not_read(net, pads):
    "Since 0.42 the pipeline hides it (diffusers#13598); without the mask the network reads it"
    ids, hidden = PROMPT.repeat(2, 1), torch.ones(2, 9, dtype=torch.long)
    hidden[0, pads] = 0
    def written(pad, **how):
        mine = ids.clone()
        mine[0, pads] = pad
        return piped(net, NaviraScheduler('remdm-conf'), mine, num_inference_steps=8, **how)
    assert torch.equal(written(30, attention_mask=hidden), written(35, attention_mask=hidden))
    assert not torch.equal(written(30), written(35))

@pytest.mark.parametrize('name', ['remdm-conf', 'entropy-remask'])
def test_a_finished_text_no_longer_changes(net, name):
    "An end ends a text with its block: the other row goes on"
    ids, new = PROMPT.repeat(2, 1), 3 * B - 9
    scheduler = NaviraScheduler(name)
    kept = piped(net, scheduler, ids, new, num_inference_steps=8)
    end = next(v for v in kept[0, :B - 9].tolist() if v not in kept[1, :B - 9] and v > 10)
    how = dict(gen_length=new, eos_early_stop=True, eos_token_id=end, num_inference_steps=8)
    out = piped(net, scheduler, ids, **how)
    assert torch.equal(out[:, :B - 9], kept[:, :B - 9]) and (out[0, B - 9:] == MASK).all()
    assert torch.equal(out[1, :2 * B - 9], kept[1, :2 * B - 9])

def test_settings_and_policies_that_would_have_no_effect_are_refused(net):
    scheduler, masks = NaviraScheduler('remdm-conf'), torch.full((1, B), MASK, dtype=torch.int32)
    with pytest.raises(ValueError, match='top_k='): piped(net, scheduler, top_k=3)
    logits = torch.zeros(1, B, V)
    with pytest.raises(ValueError, match='mask_token_id'): scheduler.step(logits, 0, masks)
    with pytest.raises(ValueError, match='budget'):
        NaviraScheduler('entropy-remask', num_inference_steps=1).step(logits, 0, masks,
                                                                     mask_token_id=MASK)
    at_once, given = NaviraScheduler('remdm-conf', num_inference_steps=1), torch.arange(B) < 4
    out = at_once.step(logits, 0, masks, mask_token_id=MASK, prompt_mask=given).prev_sample
    assert out.dtype == torch.int32 and ((out == MASK) == given).all()
