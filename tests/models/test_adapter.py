"""Heads and adapters belong to one base, whatever it is loaded in; the trained ones are in training/test_lora."""
import json, shutil, sys

import pytest
import torch

import navira
from navira.models.adapter import load_adapter, save_adapter, with_adapter
from helpers.sample_api import says

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

def made(golden, name, rank=2):
    torch.manual_seed(0)
    model = with_adapter(navira.load(golden / name), rank)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n in model.trains: p.normal_(std=.1)
    return model.eval()

@pytest.fixture(scope='module', params=['llada', 'bert', 'diffugpt'])
def saved(request, golden, tmp_path_factory):
    model, folder = made(golden, request.param), tmp_path_factory.mktemp('adapters') / request.param
    save_adapter(model, folder)
    return golden / request.param, folder, model

@torch.inference_mode()
@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
def test_its_base_is_known_in_any_precision(saved, dtype):
    base, folder, model = saved
    x = torch.full((1, 8), model.mask_id)
    q = navira.load(base, head=folder, dtype=dtype)(x).quality()
    assert q.dtype == (torch.float64 if dtype == 'float64' else torch.float32)
    assert (q - model(x).quality()).abs().max() < (.1 if '16' in dtype else 1e-5)

@pytest.mark.parametrize('twice', ['bfloat16', 'float16'])
def test_a_base_that_was_rounded_twice_is_the_same_base(saved, twice):
    base, folder, _ = saved
    other = navira.load(base, dtype='float16')
    other.net.to(getattr(torch, twice)).float()
    load_adapter(other, folder)

def test_other_weights_are_another_base_though_the_words_are_the_same(saved):
    "Each parameter of the body counts, each by itself."
    base, folder, _ = saved
    for name in (n for n, p in navira.load(base).net.named_parameters() if p.dim() > 1 and p.std() > 0):
        other = navira.load(base)
        p = other.net.get_parameter(name)
        with torch.no_grad(): p.copy_(p.flip(0, 1))
        with says(ValueError, 'another base model', name, 'there', 'here'): load_adapter(other, folder)

def test_an_adapter_is_merged_once(saved):
    base, folder, _ = saved
    model = navira.load(base, head=folder)
    with says(ValueError, 'another base model'): load_adapter(model, folder)

@pytest.mark.parametrize('key, value', [
    ('target_modules', '(a+)+$'), ('target_modules', [5]), ('rank_pattern', dict(q_proj=10**7)), ('use_dora', True),
    ('init_lora_weights', 'pissa'), ('layer_replication', [[0, 2]] * 9)])
def test_an_adapter_of_another_kind_is_refused(saved, tmp_path, key, value):
    base, folder, _ = saved
    other = shutil.copytree(folder, tmp_path / 'other')
    config = other / 'adapter_config.json'
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: value}))
    with says(ValueError, 'adapter_config.json', f'{key}=', 'expected'): navira.load(base, head=other)

def test_without_peft(golden, saved, monkeypatch):
    base, folder, _ = saved
    monkeypatch.setitem(sys.modules, 'peft', None)
    with says(ImportError, str(folder), 'peft', 'pip install'): navira.load(base, head=folder)
    with says(ImportError, 'lora=4', 'peft', 'pip install'): with_adapter(navira.load(base), 4)
