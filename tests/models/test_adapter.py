"""Heads and adapters belong to one base, whatever it is loaded in."""
import json, shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import navira
from navira.models.adapter import load_adapter, read_head, save_adapter, with_adapter
from helpers.sample_api import says

def trained(base, rank=2):
    torch.manual_seed(0)
    model = with_adapter(navira.load(base), rank)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if 'lora_' in n or n.startswith('quality.'): p.copy_(p.normal_(std=.1).bfloat16())
    return model.eval()

@pytest.fixture(scope='module', params=['llada', 'bert', 'diffugpt'])
def saved(request, golden, tmp_path_factory):
    model, folder = trained(golden / request.param), tmp_path_factory.mktemp('adapters') / 'head'
    save_adapter(model, folder)
    return golden / request.param, folder, model

@pytest.fixture
def head(saved, tmp_path): return shutil.copytree(saved[1], tmp_path / 'head')

def outputs(model):
    x = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    x[:, 3:6] = model.mask_id
    with torch.inference_mode(): return model(x).logits(x > 0), model(x).quality()

@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
def test_what_is_added_to_the_weights_is_what_was_trained_beside_them(saved, dtype):
    "In any precision of the base; peft computes what was trained."
    base, folder, model = saved
    off = .1 if '16' in dtype else 1e-4
    for a, b in zip(outputs(navira.load(base, head=folder, dtype=dtype)), outputs(model)):
        torch.testing.assert_close(a.float(), b, rtol=off, atol=off)

def test_other_weights_are_another_base_though_the_words_are_the_same(saved):
    base, folder, _ = saved
    other = navira.load(base)
    name = next(k for k, p in other.net.named_parameters() if p.dim() > 1 and p.std() > 0)
    with torch.no_grad(): other.net.get_parameter(name).neg_()
    with says(ValueError, folder, 'another base model', name): load_adapter(other, folder)

def test_saved_whole_and_loaded_it_is_the_same(saved, tmp_path):
    base, folder, model = saved
    whole = navira.load(base, head=folder)
    navira.save(whole, tmp_path)
    torch.testing.assert_close(outputs(navira.load(tmp_path)), outputs(whole))
    with says(ValueError, 'adapter is still in training'): navira.save(model, tmp_path)

@pytest.mark.parametrize('field', [
    dict(use_dora=True), dict(use_rslora=True), dict(rank_pattern=dict(q_proj=10**7)), dict(r=4),
    dict(alpha_pattern=dict(q_proj=1)), dict(of_a_later_peft=1),
    *(dict(lora_alpha=a) for a in (float('nan'), float('inf'), True, 0))])
def test_a_field_that_changes_what_is_added_is_refused_by_name(saved, head, field):
    "Others change nothing, such as a pattern that would take for ever to match."
    file = head / 'adapter_config.json'
    free = dict(lora_dropout=.1, of_a_later_peft=None, target_modules='(a+)+$')
    config = json.loads(file.read_text()) | free
    file.write_text(json.dumps(config))
    navira.load(saved[0], head=head)
    file.write_text(json.dumps(config | field))
    (name, value), = field.items()
    with says(ValueError, head, f'{name}={value!r}'): navira.load(saved[0], head=head)

@pytest.mark.parametrize('change, part', [
    (lambda w, m: m.pop('lora'), "no 'lora'"), (lambda w, m: m.update(lora='x'), "'x'"),
    (lambda w, m: m.update(lora='9' * 9), 'r=2; expected 999999999'),
    (lambda w, m: m.update(shift='x'), "shift='x'; expected 'True'"),
    (lambda w, m: [w.pop(k) for k in [*w] if 'base.' in k], 'no base.*'),
    *((lambda w, m, s=s: w.update(mask_embedding=torch.zeros(s)), f'mask_embedding is {s}')
      for s in ([], [1], [1, 16], [17]))])
def test_a_head_that_cannot_be(saved, head, change, part):
    file = head / 'quality.safetensors'
    about, weights = read_head(head)
    change(weights, about)
    save_file(weights, file, metadata=about)
    with says(ValueError, head, part): navira.load(saved[0], head=head)
    file.write_bytes(file.read_bytes()[:-9])
    with says(ValueError, head): navira.load(saved[0], head=head)

@pytest.mark.parametrize('change, part', [
    (lambda w: {k: v[:1] for k, v in w.items()}, 'cannot be multiplied'),
    (lambda w: w | {'x': torch.ones(1)}, '1 unexpected weights, such as x'),
    (lambda w: {k: v * torch.nan for k, v in w.items()}, 'holds NaN')])
def test_weights_of_another_adapter(saved, head, change, part):
    file = head / 'adapter_model.safetensors'
    save_file(change(load_file(file)), file)
    with says(ValueError, part): navira.load(saved[0], head=head)
    file.unlink()
    with says(ValueError, file.name): navira.load(saved[0], head=head)

def test_a_run_is_a_head_and_no_model(golden, tmp_path):
    run, base = tmp_path / 'run', golden / 'bert'
    run.mkdir()
    (run / 'run.json').write_text(json.dumps(dict(model=str(base))))
    with says(FileNotFoundError, 'quality.safetensors yet'): navira.load(base, head=run)
    save_adapter(trained(base), run / 'model')
    assert navira.load(base, head=run).quality is not None
    for source in (run, run / 'model'):
        with says(ValueError, 'a quality head', 'navira.load(BASE, head=', '--head'):
            navira.load(source)
