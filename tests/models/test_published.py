"""Families of 2025 and 2026 (nbs/models/families, nbs/models/variants): the logits of their public
code, which a wrong block, shift, rotary share or router would change; no tensor left out."""
import json, re

import pytest
import torch
from safetensors.torch import load_file

import navira
from navira.models.families import configured, family_of
from helpers.checkpoints import refused
from helpers.sample_api import says

SHIFTED = {'fast-dllm-v2'}
BLOCKS = {'dream-reasoner': 32, 'fast-dllm-v2': 32, 'llada2': 32, 'nemotron': 32, 'sdar': 4,
          'sdar-moe': 4}
FOLDERS = [*BLOCKS, 'illada', 'lfm2', 'llada-moe', 'rnd1', 'wedlm']

@pytest.fixture(params=FOLDERS)
def folder(request, golden): return golden / request.param

@torch.inference_mode()
def gap(model, golden):
    "The largest difference to the logits of the public code"
    told = load_file(golden / 'golden.safetensors')
    got = model(told['ids']).logits(told['ids'] >= 0).view(told['logits'].shape)
    return (got - told['logits'])[got > -torch.inf].abs().max().item()

@pytest.mark.parametrize('dtype, most', [('float32', 3e-5), ('float64', 3e-5), ('bfloat16', .6)])
def test_logits_are_those_of_the_public_code(folder, dtype, most):
    "Rounded to bfloat16, a token may go to another expert."
    model = navira.load(folder, dtype=dtype)
    assert model.block == BLOCKS.get(folder.name) and model.shift == (folder.name in SHIFTED)
    assert gap(model, folder) < most

def test_a_wrong_shift_or_mask_gives_other_logits(folder):
    model = navira.load(folder)
    wrong = dict(shift=not model.shift, block=None, observed_first=False, causal_context=False)
    if not model.causal_context: wrong |= dict(block=None)
    for k, v in wrong.items():
        before = getattr(model, k)
        setattr(model, k, v)
        assert v == before or gap(model, folder) > 1e-3, k
        setattr(model, k, before)

def test_every_tensor_matters(folder):
    "A router's bias changes the choice of experts, the mask's row what is read at a mask."
    model, g = navira.load(folder), torch.Generator().manual_seed(7)
    for name, w in model.net.state_dict().items():
        before = w.clone()
        w += (w.std() + .1) * torch.randn(w.shape, generator=g)
        assert gap(model, folder) > 1e-3, name
        w.copy_(before)
    assert gap(model, folder) < 3e-5

def test_no_tensor_may_be_left_out_or_over(folder, copied):
    names = {re.sub(r'\d+', '1', k): k for k in load_file(folder / 'model.safetensors')}
    for name in names.values():
        refused(copied(folder.name, {name: None}), name if 'experts' in name else 'Missing')
    more = 'model.vision_tower.weight'
    refused(copied(folder.name, {more: torch.ones(2)}), f'unexpected: {more}')

WRONG = {
    'dream-reasoner': dict(block_size=36), 'fast-dllm-v2': dict(bd_size=36),
    'illada': dict(rope_theta=1e4), 'lfm2': dict(norm_eps=1.),
    'llada-moe': dict(partial_rotary_factor=1., num_experts_per_tok=1, rope_theta=1e4),
    'llada2': dict(partial_rotary_factor=1., block_size=36, n_group=2, topk_group=3,
                   routed_scaling_factor=1),
    'nemotron': dict(block_size=36, rope_parameters=dict(rope_type='default', rope_theta=1e6)),
    'rnd1': dict(norm_topk_prob=False),
    'sdar': dict(block_size=3), 'sdar-moe': dict(norm_topk_prob=False)}

@pytest.mark.parametrize('name, field, value', [
    (name, *field) for name, fields in WRONG.items() for field in fields.items()])
def test_a_wrong_configuration_gives_other_logits(copied, golden, name, field, value):
    assert gap(navira.load(copied(name, **{field: value})), golden / name) > 1e-3

def test_saved_again_and_written_in_blocks(folder, tmp_path):
    model = navira.load(folder)
    navira.save(model, tmp_path)
    again = navira.load(tmp_path)
    def facts(m): return m.mask_id, m.shift, m.block, m.eos_ids
    assert facts(again) == facts(model) and gap(again, folder) < 3e-5
    caches = {'none', ('block' if model.block else 'prompt') if model.n_blocks else 'none'}
    for cache in caches:
        out = navira.sample(again, 'llada-low-confidence', 8, n=2, length=8, eos='keep',
                            cache=cache)
        assert not torch.isin(out.tokens, torch.tensor([model.mask_id, -1])).any()

@pytest.mark.parametrize('name, fields, words', [
    ('llada-moe', dict(shared_expert_intermediate_size=8), ['shared_expert', 'LLaDA-MoE-7B']),
    ('llada-moe', dict(expert_intermediate_size=24), ['by config.json']),
    ('wedlm', dict(qk_norm=False), ['q_proj.bias']),
    ('llada2', dict(use_bias=True), ['use_bias=True', 'LLaDA2.0-mini']),
    ('llada2', dict(num_experts=10**9), ['num_experts', 'at most'])])
def test_a_variant_that_nobody_has_published(copied, name, fields, words):
    refused(copied(name, **fields), *words)

def test_heads_of_no_given_width_share_the_hidden_states(copied, golden):
    model = navira.load(copied('llada-moe', head_dim=None))
    assert gap(model, golden / 'llada-moe') < 3e-5
    settings = json.loads((golden / 'wedlm' / 'config.json').read_text())
    del settings['head_dim']                  # Qwen3's default is 128
    assert configured(family_of(settings), settings).head_dim == 16 // 4

def test_without_a_name_in_the_tokenizer_the_mask_is_the_familys(copied):
    folder = copied('sdar', '*token*.json')
    refused(folder, 'mask_id=151669', '0 to 287')
    assert navira.load(folder, mask_id=5).mask_id == 5

@pytest.mark.parametrize('name', ['lfm2', 'wedlm'])
def test_what_reads_to_its_right_by_design_has_no_blocks(golden, name):
    refused(golden / name, 'block=4', 'expected no block', block=4)

def test_an_unknown_family_gets_the_nearest():
    with says(ValueError, "did you mean 'llada2_moe'", 'known are', 'sdar_moe'):
        family_of(dict(model_type='llada2moe'))
