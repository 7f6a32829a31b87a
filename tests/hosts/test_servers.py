"""A policy that is handed logits writes what it writes when it asks a model for them; and so do
the objects for vLLM's plugin, SGLang and dLLM, with stubs of their interfaces."""
import sys
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import frozen
from helpers.hosts import behind, EOS, MASK, run, served
from helpers.peers import WITHOUT_CRITIC
from navira.base.noise import Noise
from navira.hosts.servers import (
    DllmSampler, hosted, policy_step, sglang_algorithm, start, VllmPolicy)
from navira.models.transformers import wrap
from navira.sampler.budgets import n_steps
from navira.sampler.registry import policy
from navira.sampling import sample, states

M, L, V, B = frozen.M, frozen.L, frozen.V, 8
# that need no more than the logits of one text
PLAIN = [n for n in WITHOUT_CRITIC if not policy(n).step.needs]
TWO = ['remdm-conf', 'entropy-remask', 'mask-predict']
# 12, 9, 6, 8 and 1 free
ragged = torch.stack([torch.tensor(t + [M] * (L - len(t))) for t in frozen.prompts['ragged']])

def network(ids): # -> logits [B, L, V], qualities [B, L]
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    return frozen.net.logits_at(ids, everywhere).unflatten(0, ids.shape), frozen.net.quality_of(ids)

def reference(rule, x, budget=16, seed=3, made=0):
    "The last state of the library's own loop"
    rule = replace(rule, depth=None)
    noise = Noise(seed, torch.arange(len(x)), made)
    *_, last = states(rule, frozen.net, x, n_steps(rule, budget, (x == M).sum(1)), noise)
    return last

# ---- A loop of one's own

@pytest.mark.parametrize('name', PLAIN)
def test_a_policy_writes_what_the_own_loop_writes(name):
    "Rows have 1 to 12 masks, and a text that has been read is not read anew"
    rule = policy(name)
    last, (memory, read) = reference(rule, ragged), run(rule, ragged, network, M)
    assert torch.equal(memory.st.x, last.x) and torch.equal(memory.st.n_forward, last.n_forward)
    torch.testing.assert_close(memory.st.conf, last.conf, equal_nan=True)
    torch.testing.assert_close(memory.st.score, last.score, equal_nan=True)
    assert all(not torch.equal(a, b) for a, b in zip(read, read[1:]))
    assert len(read) <= (16 if rule.matched else last.n * rule.passes)
    for ids in read: assert torch.equal(ids[ragged != M], ragged[ragged != M])


@pytest.mark.parametrize('name', TWO)
def test_a_run_goes_on_after_a_host_has_changed_the_text(name):
    "It writes tokens and masks of its own, also between two passes of a step"
    ids, changed = torch.full((1, L), M), 0
    memory = start(policy(name), ids, M, 16, 3)
    for k in range(40):
        if memory.done: break
        ids, memory = policy_step(ids, network(ids)[0], None, memory)
        if k < 6 and not memory.done:
            ids = ids.index_fill(1, torch.tensor([k]), M if k % 2 else 2)
            changed += not torch.equal(ids, memory.ids)
    assert memory.done and (ids != M).all() and changed > 1

def test_fixed_masks_stay_a_full_text_is_done_and_bad_input_is_named():
    rule, fixed = policy('remdm-conf'), torch.zeros_like(ragged, dtype=torch.bool)
    fixed[:, -3:] = True
    last = run(rule, ragged, network, M, fixed=fixed | (ragged != M))[0].st
    assert (last.x[:, -3:][ragged[:, -3:] == M] == M).all()
    assert start(rule, torch.zeros(2, L, dtype=torch.long), M, 16).done
    with pytest.raises(ValueError, match='positions'):
        policy_step(ragged, network(ragged)[0].flatten(0, 1), None, start(rule, ragged, M, 16))
    with pytest.raises(ValueError, match='budget'): start(policy('entropy-remask'), ragged, M, 1)

# ---- Servers

@pytest.fixture(scope='module')
def net(): return served()

@pytest.fixture
def plugin(monkeypatch, request): # by its name until vLLM 0.14, or from then on
    Result = namedtuple('RemaskStepResult', 'committed_token_ids next_input_block')
    module = SimpleNamespace(RemaskStepResult=Result)
    name = getattr(request, 'param', 'dllm_plugin')
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(remasking=module))
    monkeypatch.setitem(sys.modules, f'{name}.remasking', module)

@pytest.mark.parametrize('name', ['remdm-conf', 'llada-low-confidence', 'p2', 'proseco'])
def test_vllm_s_grammar_is_obeyed(net, name, plugin):
    "The plugin's worker gives what its grammar forbids a logit of -inf, at the first open position"
    rule, draft, committed = VllmPolicy(name, MASK, budget=8, block_length=B), (MASK,) * B, ()
    while not committed:
        logits = net(torch.tensor([draft])).logits[0]
        logits[0, 1::2] = -torch.inf
        logits[5, 9:] = logits[5, :8] = -torch.inf
        committed, draft = rule.apply(input_draft=draft, logits=logits, remasking_config=dict(
            grammar_extra_transfer=3))
    assert committed[0] % 2 == 0 and committed[5] == 8 and MASK not in committed

@pytest.mark.parametrize('plugin', ['dllm_plugin', 'vllm_dllm_plugin'], indirect=True)
@pytest.mark.parametrize('name', ['remdm-conf', 'entropy-remask'])
def test_vllm_gets_a_policy_that_commits_whole_blocks(net, name, plugin):
    rule, before, memory = VllmPolicy(name, MASK, budget=6, seed=4, block_length=B), (), None
    draft = (3, 4) + (MASK,) * (B - 2)     # the end of the prompt is in the first block
    for _ in range(2):
        text = torch.tensor([before], dtype=torch.long)
        memory, _ = run(hosted(name, {}, B, 6), torch.tensor([draft]), behind(net, text), budget=6,
                        seed=4, after=memory)
        committed = ()
        while not committed:
            logits = net(torch.tensor([[*before, *draft]])).logits[0, -B:]
            committed, draft = rule.apply(input_draft=draft, logits=logits)
            assert all(type(i) is int for i in committed + draft) and len(draft) == B
        assert committed == tuple(memory.st.x[0].tolist()) and draft == (MASK,) * B
        before += committed
    assert before[:2] == (3, 4) and MASK not in before

class DllmAlgorithm: # of SGLang
    def __init__(self, config): self.block_size, self.mask_id = config.block_size, config.mask_id

@pytest.mark.parametrize('name', ['remdm-conf', 'entropy-remask', 'mdlm'])
def test_sglang_emits_a_block_after_a_pass_that_has_read_it(net, name, monkeypatch):
    monkeypatch.setitem(sys.modules, 'sglang.srt.dllm.algorithm.base',
                        SimpleNamespace(DllmAlgorithm=DllmAlgorithm))
    config = SimpleNamespace(block_size=B, mask_id=MASK,
                             algorithm_config=dict(policy=name, budget=6))
    rule, memories, buffer, done, passes = sglang_algorithm()(config), [None, None], None, [], 0
    assert isinstance(rule, DllmAlgorithm)
    batch = SimpleNamespace(input_ids=torch.full((2 * B,), MASK), rids=['a', 'b'],
                            positions=torch.arange(B).repeat(2), dllm_prompt_mask=None)
    batch.input_ids[:2], address = torch.tensor([3, 4]), batch.input_ids.data_ptr()
    while not done or not all(done):
        read = batch.input_ids.clone()
        logits, passes = net(read.view(2, B)).logits.flatten(0, 1), passes + 1
        buffer = logits if buffer is None else buffer.copy_(logits)      # as in a CUDA graph
        done = rule.step(batch, buffer, memories)
    assert torch.equal(read, batch.input_ids) and batch.input_ids.data_ptr() == address
    assert passes <= 7 and read[:2].tolist() == [3, 4] and (read != MASK).all()

# ---- dLLM

TOKENS = SimpleNamespace(mask_token_id=MASK, eos_token_id=EOS, bos_token_id=2)

def test_dllm_gets_what_sample_writes_padded_with_the_end_token(net):
    "In blocks after prompts of two lengths"
    prompts, model = [[3, 4, 5, 6], [7, 8]], wrap(net, mask_id=MASK, shift=False)
    out = DllmSampler(net, TOKENS, 'llada-low-confidence').sample(
        prompts, max_new_tokens=12, block_size=4, steps=6)
    want = sample(model, 'llada-low-confidence', 6, prompt=prompts, max_new_tokens=12,
                  block_length=4, eos='keep').tokens
    assert torch.equal(out, want.masked_fill(want < 0, EOS)) and (out[1, -2:] == EOS).all()

class Config: # of dLLM
    def __init__(self, **how):
        vars(self).update(dict(max_new_tokens=128, max_length=None, block_size=128, steps=128,
                               temperature=0., cfg_scale=0., return_dict=False) | how)

def test_dllm_s_config_is_read_and_what_has_no_effect_refused(net):
    sampler, prompt = DllmSampler(net, TOKENS, 'remdm-conf', seed=1, eta=.5), [[3, 4, 5]]
    how = Config(max_new_tokens=8, steps=8, block_size=4)
    out = sampler.sample(prompt, how)
    assert out.shape == (1, 11) and (out != MASK).all()
    other = Config(max_new_tokens=0, max_length=11, steps=3)
    assert torch.equal(out, sampler.sample(prompt, other, steps=8, block_size=4))
    with pytest.raises(ValueError, match='top='): sampler.sample(prompt, how, top=3)
    with pytest.raises(ValueError, match='cfg_scale=2'):
        sampler.sample(prompt, Config(cfg_scale=2.))
    text = [3, MASK, 4, MASK]
    filled = sampler.infill([text], steps=2)[0].tolist()
    assert filled[::2] == [3, 4] and MASK not in filled
