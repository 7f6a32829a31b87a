"vLLM's plugin, SGLang and dLLM: stubs of their interfaces, and plain loops of their rules."
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import pytest
import torch

from order import settings
from navira.hosts.from_logits import hosted, policy_step, start
from navira.hosts.servers import DllmSampler, sglang_algorithm, SglangPolicy, VllmPolicy
from helpers.hosts import EOS, MASK, served

B = 8

@pytest.fixture(scope='module')
def net(): return served()

@pytest.fixture
def stub(monkeypatch):
    "Puts a module in the place of a host's"
    def put(name, **what):
        parts = name.split('.')
        for k in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, '.'.join(parts[:k]), ModuleType('.'.join(parts[:k])))
        vars(sys.modules[name]).update(what)
    return put

def test_installing_and_importing_needs_no_host(root):
    "Only the scheduler of diffusers imports its host, which an extra brings"
    hosts = 'diffusers', 'dllm', 'sglang', 'vllm', 'vllm_dllm_plugin'
    code = f"""import sys
sys.modules.update(dict.fromkeys({hosts}))
import navira.hosts.custom_generate.generate, navira.hosts.from_logits, navira.hosts.servers
try: import navira.hosts.diffusers
except ImportError as e: print(e)"""
    said = subprocess.run([sys.executable, '-c', code], cwd=root, capture_output=True, text=True)
    assert said.returncode == 0 and 'diffusers' in said.stdout, said.stderr
    required = settings()['requirements'].lower()
    assert not [name for name in hosts if name in required]

# ---- vLLM's dllm-plugin: its contract in our words

@dataclass(frozen=True)
class RemaskStepResult:
    committed_token_ids: tuple
    next_input_block: tuple

@runtime_checkable
class RemaskingPolicy(Protocol):
    def apply(self, *, input_draft: Sequence[int], logits: Any | None = None,
              remasking_config: Mapping[str, Any] | None = None) -> RemaskStepResult: ...

@pytest.fixture
def plugin(stub): stub('vllm_dllm_plugin.remasking', RemaskStepResult=RemaskStepResult)

def block_of(rule, net, before, draft, **config): # -> the block, how many passes
    "As a worker would: until something is committed"
    for k in range(99):
        logits = net(torch.tensor([[*before, *draft]])).logits[0, -len(draft):]
        r = rule.apply(input_draft=draft, logits=logits, remasking_config=config)
        assert isinstance(r, RemaskStepResult) and len(r.next_input_block) == len(draft)
        assert all(type(i) is int for i in r.next_input_block + r.committed_token_ids)
        if r.committed_token_ids: break
        draft = r.next_input_block
    assert r.next_input_block == (MASK,) * len(draft)
    return r.committed_token_ids, k + 1

def hosted_run(name, net, before, x, budget, seed=0, after=None):
    rule, ids = hosted(name, {}, B, budget), x[None]
    memory = start(rule, ids, MASK, budget, seed, after=after)
    while not memory.done:
        text = torch.cat([torch.tensor([before]).long(), ids], 1)
        ids, memory = policy_step(ids, net(text).logits[:, -len(x):], None, memory)
    return ids[0], memory

@pytest.mark.parametrize('name', ['remdm-conf', 'llada-low-confidence', 'entropy-remask'])
def test_vllm_gets_a_policy_that_commits_whole_blocks(net, plugin, name):
    rule = VllmPolicy(name, MASK, budget=6, seed=4, block_length=B)
    assert isinstance(rule, RemaskingPolicy)
    draft = (3, 4) + (MASK,) * (B - 2)     # the end of the prompt is in the first block
    first, passes = block_of(rule, net, [], draft)
    want, memory = hosted_run(name, net, [], torch.tensor(draft), 6, 4)
    assert first == tuple(want.tolist()) and first[:2] == (3, 4) and passes <= 6
    second, _ = block_of(rule, net, first, (MASK,) * B)
    want, _ = hosted_run(name, net, first, torch.full((B,), MASK), 6, 4, memory)
    assert second == tuple(want.tolist()) and MASK not in second


# ---- SGLang: its two loops in our words

class DllmAlgorithm:
    def __init__(self, config): self.block_size, self.mask_id = config.block_size, config.mask_id

@pytest.fixture
def algorithm(stub):
    stub('sglang.srt.dllm.algorithm.base', DllmAlgorithm=DllmAlgorithm)
    return sglang_algorithm()

def config(name='remdm-conf', **how):
    return SimpleNamespace(block_size=B, mask_id=MASK,
                           algorithm_config=dict(policy=name, budget=6, **how))

def batch_of(rows, rids, place=0, dtype=torch.int64, prompt=None):
    ids = torch.tensor(rows, dtype=dtype).flatten()
    positions = (place + torch.arange(B)).repeat(len(rows))
    return SimpleNamespace(input_ids=ids, rids=rids, positions=positions, dllm_prompt_mask=prompt)

def forward(net, batch):
    x = batch.input_ids.view(-1, B).long()
    return net(x).logits.flatten(0, 1), x.clone()

def in_step(rule, net, batch):
    "All blocks together until all are done -> passes, and the texts of the last one"
    states, buffer = [None] * (len(batch.input_ids) // B), None
    for k in range(rule.max_steps(B)):
        logits, read = forward(net, batch)
        buffer = logits if buffer is None else buffer.copy_(logits)      # as in a CUDA graph
        if all(rule.step(batch, buffer, states)): return k + 1, read

PROMPTED = [3, 4] + [MASK] * (B - 2)

@pytest.mark.parametrize('name', ['remdm-conf', 'entropy-remask', 'mdlm'])
def test_sglang_emits_a_block_after_a_pass_that_has_read_it(net, algorithm, name):
    rule, ids = algorithm(config(name)), batch_of([PROMPTED, [MASK] * B], ['a', 'b'])
    assert isinstance(rule, DllmAlgorithm) and isinstance(rule, SglangPolicy)
    address = ids.input_ids.data_ptr()
    passes, read = in_step(rule, net, ids)
    assert torch.equal(read.flatten(), ids.input_ids) and (ids.input_ids != MASK).all()
    assert passes <= 7 and ids.input_ids[:2].tolist() == [3, 4]
    assert ids.input_ids.data_ptr() == address


# ---- dLLM

TOKENS = SimpleNamespace(mask_token_id=MASK, eos_token_id=EOS, bos_token_id=2)

def mdlm(net, prompts, new, size, steps):
    "dLLM's rule by rows: in each block the surest of N / T masks a step"
    L, rows = max(map(len, prompts)) + new, []
    for p in prompts:
        x = torch.tensor([*p] + [MASK] * new + [EOS] * (L - len(p) - new))
        seen = (torch.arange(L) < len(p) + new).long()[None]
        for start_ in range(len(p), len(p) + new, size):
            block = range(start_, start_ + size)
            for _ in range(steps * size // new):
                sure = net(x[None], attention_mask=seen).logits[0].softmax(-1).max(-1)
                masks = [j for j in block if x[j] == MASK]
                for j in sorted(masks, key=lambda j: -sure.values[j])[:new // steps]:
                    x[j] = sure.indices[j]
        rows.append(x)
    return torch.stack(rows)

@pytest.mark.parametrize('size, steps', [(12, 12), (12, 4), (4, 6), (6, 12)])
def test_dllm_writes_the_tokens_of_its_own_rule(net, size, steps):
    "Prompts of two lengths; the shorter text is padded with the end token"
    prompts = [[3, 4, 5, 6], [7, 8]]
    out = DllmSampler(net, TOKENS, 'llada-low-confidence').sample(
        prompts, max_new_tokens=12, block_size=size, steps=steps)
    assert torch.equal(out, mdlm(net, prompts, 12, size, steps))

@dataclass
class Config: # as dLLM's have it
    max_new_tokens: int = 128
    max_length: int | None = None
    block_size: int = 128
    steps: int = 128
    temperature: float = 0.
    cfg_scale: float = 0.
    suppress_tokens: list | None = None
    right_shift_logits: bool = False
    return_dict: bool = False

def test_dllm_s_config_is_read_and_what_has_no_effect_refused(net, stub):
    sampler, prompt = DllmSampler(net, TOKENS, 'remdm-conf', seed=1, eta=.5), [[3, 4, 5]]
    how = Config(max_new_tokens=8, steps=8, block_size=4)
    out = sampler.sample(prompt, how)
    assert out.shape == (1, 11) and (out != MASK).all()
    other = Config(max_new_tokens=0, max_length=11, steps=3)
    assert torch.equal(out, sampler.sample([torch.tensor(prompt[0])], other, steps=8, block_size=4))
    for more in (dict(temperature=.5), dict(cfg_scale=1.), dict(suppress_tokens=[3]), dict(top=3)):
        with pytest.raises(ValueError, match=f'{[*more][0]}='): sampler.sample(prompt, how, **more)
    with pytest.raises(ValueError, match='cfg_scale=2'):
        sampler.sample(prompt, Config(cfg_scale=2.))
    with pytest.raises(KeyError, match='remdm-conf'):
        DllmSampler(net, TOKENS, 'remdm-con')
    stub('dllm.core.samplers', BaseSamplerOutput=SimpleNamespace)
    assert torch.equal(sampler.sample(prompt, how, return_dict=True).sequences, out)
