"""Checkpoints in MDLM's layout: whole, damaged, foreign and malicious; and those of Lightning,
converted."""
import importlib.util, math, os, pickle, subprocess, sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import save_file

from navira.models.checkpoints import on_disk
from navira.models.load import load, save
from helpers.checkpoints import (  # noqa: F401
    HEAD, TINY, hub_folder, lightning, no_grad, noisy, refused, same, small_tokenizer)

REAL = Path(__file__).parent / 'lightning.ckpt'      # with a configuration of OmegaConf 2.3
TOOL = Path(__file__).parents[2] / 'tools' / 'convert_ckpt.py'

def converted(path, *length):
    "The model that the tool makes of a file, beside it"
    spec = importlib.util.spec_from_file_location('convert_ckpt', TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.convert(path, path.with_suffix(''), *length)
    return load(path.with_suffix(''))

# --- saving -----------------------------------------------------------------------------------

def test_a_save_that_fails_leaves_the_old_model_whole(tmp_path, monkeypatch):
    folder = tmp_path / 'm'
    save(noisy(seed=1), folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    monkeypatch.setattr('navira.models.checkpoints.save_file', None)
    with pytest.raises(TypeError): save(noisy(seed=2), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before

# --- weights that cannot be -------------------------------------------------------------------

@pytest.mark.parametrize('value', [math.nan, -math.inf])
@pytest.mark.parametrize('kept', [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused(tmp_path, value, kept):
    model, name = noisy(), 'quality.block.mlp.0.weight'
    model.quality.block.mlp[0].weight.flatten()[-1] = value
    save(model, tmp_path / 'm', kept)
    refused(tmp_path / 'm', name, 'holds NaN or infinity; expected finite', dtype='bf16')

@pytest.mark.parametrize('change, words', [
    ({'adapter.weight': torch.ones(1)}, 'Unexpected key(s) in state_dict: "adapter.weight"'),
    ({'backbone.blocks.1.norm2.weight': None}, 'Missing key(s) in state_dict: "backbone.blocks.1.'),
    ({'backbone.blocks.0.attn_out.weight': torch.ones(16, 8)}, 'torch.Size([16, 8])'),
    ({'backbone.vocab_embed.embedding': None}, 'backbone.vocab_embed.embedding')])
def test_weights_of_another_network_are_named(tmp_path, change, words):
    state = on_disk(noisy(TINY)) | change
    state = {k: w for k, w in state.items() if w is not None}
    save(noisy(TINY), tmp_path)
    save_file(state, tmp_path / 'm.safetensors')
    refused(tmp_path / 'm.safetensors', 'not the weights of', words)

# --- Lightning checkpoints --------------------------------------------------------------------

def test_a_file_of_mdlms_training_is_converted_without_its_packages(tmp_path):
    "It holds objects of OmegaConf, tokenizers, optimizers and numpy."
    refused(REAL, 'no config.json', 'convert_ckpt', error=FileNotFoundError)
    run = ('import sys, runpy; '
           'runpy.run_path(%r, run_name="__main__"); '
           'sys.exit(bool({"omegaconf", "transformers"} & {*sys.modules}))' % str(TOOL))
    assert subprocess.run([sys.executable, '-c', run, REAL, tmp_path / 'm', '12']).returncode == 0
    assert same(load(tmp_path / 'm'), noisy(TINY, 2)) and load(tmp_path / 'm').length == 12

def test_the_average_of_backbone_and_head_in_either_order(tmp_path):
    raw, average = noisy(HEAD, 1), noisy(HEAD, 2)
    backbone, head = list(average.backbone.parameters()), list(average.quality.parameters())
    for listed in (backbone + head, head + backbone):
        assert same(converted(lightning(tmp_path / 'a.ckpt', raw, listed)), average)
    model = converted(lightning(tmp_path / 'a.ckpt', raw, backbone))
    assert same(model.backbone, average.backbone) and same(model.quality, raw.quality)
    with pytest.raises(ValueError, match='in the order and the shapes of the backbone'):
        converted(lightning(tmp_path / 'a.ckpt', raw, backbone[::-1]))

def test_a_bare_state_dict_and_a_bin(tmp_path):
    model = noisy(TINY)
    state = {k.removeprefix('backbone.'): w for k, w in on_disk(model).items()}
    save(model, tmp_path)
    torch.save(state, tmp_path / 'bare.pt')
    assert same(load(tmp_path / 'bare.pt'), model)
    folder = hub_folder(tmp_path / 'hf', model)
    (folder / 'model.safetensors').unlink()
    torch.save(model.state_dict(), folder / 'pytorch_model.bin')
    assert same(load(folder), model)

# --- malice -----------------------------------------------------------------------------------

class Calls:
    "Pickles as `function(*args)`."
    def __init__(self, function, *args): self.how = function, args
    def __reduce__(self): return self.how

def attacks(marker):
    touch, code = f'touch {marker}', f"open({str(marker)!r}, 'w').write('x')"
    return [Calls(os.system, touch), Calls(eval, code), Calls(open, str(marker), 'w'),
            Calls(getattr, Path('x'), 'unlink'), Calls(subprocess.Popen, ['touch', str(marker)]),
            Calls(pickle.loads, pickle.dumps(Calls(os.system, touch)))]

@pytest.mark.parametrize('place', ['state_dict', 'average', 'configuration'])
def test_of_a_malicious_checkpoint_nothing_runs(tmp_path, place):
    "It is refused, or what it wanted to call is a stand-in that does nothing."
    marker, path, params = tmp_path / 'owned', tmp_path / 'evil.ckpt', [*noisy(TINY).parameters()]
    save(noisy(TINY), tmp_path)
    for bad in attacks(marker):
        state = on_disk(noisy(TINY)) | ({'x': bad} if place == 'state_dict' else {})
        average = [*params, bad] if place == 'average' else params
        config = {'config': [{'b': bad}]} if place == 'configuration' else {}
        torch.save(dict(state_dict=state, ema=dict(shadow_params=average), **config), path)
        for opened in (load, converted):
            try: assert same(opened(path), noisy(TINY))
            except ValueError as e: assert str(path) in str(e)
        assert not marker.exists()

# --- damage -----------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def files(tmp_path_factory):
    "A whole model, as a folder and as single files: {name: bytes}"
    folder, model = tmp_path_factory.mktemp('whole'), noisy(TINY)
    model.tokenizer = small_tokenizer()
    save(model, folder)
    torch.save(model.state_dict(), folder / 'm.pt')
    torch.save(model.state_dict(), folder / 'old.pt', _use_new_zipfile_serialization=False)
    return {p.name: p.read_bytes() for p in folder.iterdir()}

@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(
           ['config.json', 'model.safetensors', 'tokenizer.json', 'm.pt', 'old.pt']),
       place=st.floats(0, 1), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_is_a_model_or_one_sentence(files, tmp_path, name, place, byte, cut):
    for file, data in files.items(): (tmp_path / file).write_bytes(data)
    data = bytearray(files[name])
    at = min(int(place * len(data)), len(data) - 1)
    data[at:] = b'' if cut else bytes([byte]) + data[at + 1:]
    (tmp_path / name).write_bytes(data)
    try: load(tmp_path / name if name.endswith('.pt') else tmp_path)
    except (ValueError, FileNotFoundError) as e:
        assert str(tmp_path) in str(e) and '\n' not in str(e) and len(str(e)) < 2000
