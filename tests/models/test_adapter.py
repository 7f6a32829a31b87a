"""Heads and adapters belong to one base, whatever it is loaded in; the trained ones are in
training/test_lora."""
import json, shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import navira
from navira.models.adapter import load_adapter, metadata, save_adapter, with_adapter, with_mask
from helpers.sample_api import says

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

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

def outputs(model):
    x = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    x[:, 3:6] = model.mask_id
    with torch.inference_mode(): return model(x).logits(x > 0), model(x).quality()

@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
def test_its_base_is_known_in_any_precision(saved, dtype):
    base, folder, model = saved
    q = outputs(navira.load(base, head=folder, dtype=dtype))[1]
    assert q.dtype == (torch.float64 if dtype == 'float64' else torch.float32)
    assert (q - outputs(model)[1]).abs().max() < (.1 if '16' in dtype else 1e-5)

def test_other_weights_are_another_base_though_the_words_are_the_same(saved):
    base, folder, _ = saved
    for name, p in navira.load(base).net.named_parameters():
        if p.dim() < 2 or p.std() == 0: continue
        other = navira.load(base)
        with torch.no_grad(): other.net.get_parameter(name).neg_()
        with says(ValueError, 'another base model', name): load_adapter(other, folder)
        break
    with says(ValueError, 'another base model'):             # its adapter is merged already
        load_adapter(navira.load(base, head=folder), folder)

def test_saved_whole_and_loaded_it_is_the_same(saved, tmp_path):
    base, folder, model = saved
    whole = navira.load(base, head=folder)
    navira.save(navira.load(base), tmp_path)
    navira.save(whole, tmp_path)  # over the first
    torch.testing.assert_close(outputs(navira.load(tmp_path)), outputs(whole))
    with says(ValueError, 'adapter is still in training'): navira.save(model, tmp_path)

@pytest.mark.parametrize('field', [
    dict(use_dora=True), dict(use_rslora=True), dict(rank_pattern=dict(q_proj=10**7)), dict(r=4),
    dict(alpha_pattern=dict(q_proj=1)), dict(layer_replication=[[0, 2]] * 9), dict(bias='all'),
    dict(modules_to_save=['lm_head']), dict(peft_type='IA3'),
    dict(layers_to_transform=[0]), dict(init_lora_weights='pissa'), dict(of_a_later_peft=1)])
def test_a_field_that_changes_the_merge_is_refused_by_name(saved, tmp_path, field):
    base, folder, _ = saved
    changed(shutil.copytree(folder, tmp_path / 'other') / 'adapter_config.json', **field)
    (name, value), = field.items()
    with says(ValueError, 'adapter_config.json', f'{name}={value!r}'):
        navira.load(base, head=tmp_path / 'other')

def test_other_fields_change_nothing(saved, tmp_path):
    base, folder, model = saved
    changed(shutil.copytree(folder, tmp_path / 'other') / 'adapter_config.json', lora_dropout=.1,
            inference_mode=False, revision='x', of_a_later_peft=None, task_type='CAUSAL_LM')
    other = navira.load(base, head=tmp_path / 'other')
    for a, b in zip(outputs(other), outputs(model)): assert torch.allclose(a, b, atol=1e-4)

@pytest.mark.parametrize('change, part', [
    (lambda w, m: (w, None), "no 'lora'"), (lambda w, m: (w, m | dict(lora='x')), "'x'"),
    (lambda w, m: (w, m | dict(lora='9' * 9)), 'lora=999999999'),
    (lambda w, m: (w, m | dict(lora='0')), "lora='0' beside"),
    (lambda w, m: (w, m | dict(shift='x')), "shift='x'; expected 'True'"),
    (lambda w, m: ({k: v for k, v in w.items() if 'base.' not in k}, m), 'no base.*'),
    (lambda w, m: (w | dict(mask_embedding=torch.ones(16).int()), m), 'is torch.int32'),
    *((lambda w, m, s=s: (w | dict(mask_embedding=torch.zeros(s)), m), f'mask_embedding is {s}')
      for s in ([], [1], [1, 16], [17], [2, 16]))])
def test_a_head_that_cannot_be(saved, tmp_path, change, part):
    base, folder, _ = saved
    head = shutil.copytree(folder, tmp_path / 'head')
    file = head / 'quality.safetensors'
    weights, about = change(load_file(file), metadata(file))
    save_file(weights, file, metadata=about)
    with says(ValueError, file, part): navira.load(base, head=head)
    file.write_bytes(file.read_bytes()[:-9])
    with says(ValueError, file): navira.load(base, head=head)

def test_saving_a_head_changes_no_model(golden, tmp_path):
    model = with_mask(trained(golden / 'llada', 0))
    with torch.no_grad(): model.mask_embedding += 1
    before = {k: w.clone() for k, w in model.state_dict().items()}
    save_adapter(model, tmp_path / 'head')
    for k, w in model.state_dict().items(): assert torch.equal(w, before[k]), k

def changed(file, **settings): file.write_text(json.dumps(json.loads(file.read_text()) | settings))

@pytest.mark.parametrize('damage, error, part', [
    (lambda c, w: c.write_text('{}'), ValueError, "no 'lora_alpha'"),
    *((lambda c, w, a=a: changed(c, lora_alpha=a), ValueError, f'lora_alpha={a}: expected')
      for a in (float('nan'), float('inf'), True, 0, -1)),
    (lambda c, w: w.unlink(), FileNotFoundError, 'adapter_model.safetensors'),
    (lambda c, w: w.write_bytes(b'x'), ValueError, 'not an adapter'),
    (lambda c, w: changed(c, target_modules='(a+)+$'), ValueError, 'not an adapter')])
def test_a_damaged_adapter(saved, tmp_path, damage, error, part):
    base, folder, _ = saved
    head = shutil.copytree(folder, tmp_path / 'head')
    damage(head / 'adapter_config.json', head / 'adapter_model.safetensors')
    with says(error, head, part): navira.load(base, head=head)

def test_a_run_is_a_head_and_no_model(golden, tmp_path):
    run, base = tmp_path / 'run', golden / 'bert'
    run.mkdir()
    (run / 'run.json').write_text(json.dumps(dict(model=str(base))))
    with says(FileNotFoundError, 'quality.safetensors yet'): navira.load(base, head=run)
    save_adapter(trained(base), run / 'model')
    a, b = (outputs(navira.load(base, head=folder)) for folder in (run, run / 'model'))
    torch.testing.assert_close(a[1], b[1])
    for source in (run, run / 'model'):
        with says(ValueError, 'a quality head', 'navira.load(BASE, head=', '--head'):
            navira.load(source)
