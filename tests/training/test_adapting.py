"""A pretrained network becomes a masked diffusion model: what is written, resumed to the last bit, counted in bits."""
import json, math, shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import navira
from navira.training.adapting import adapt
from navira.training.runs import read_checkpoint, read_log
from navira.training.settings import AdaptConfig, FinetuneConfig
from navira.training.finetuning import finetune
from helpers.sample_api import says

TEXT = 'the old dog saw a house by day'

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp('home')
    shutil.copytree(Path(__file__).parent.parent / 'pretrained', folder, dirs_exist_ok=True)
    for name, n in (('train', 200), ('validation', 40)):
        (folder / f'{name}.txt').write_text('\n\n'.join([TEXT] * n))
    return folder

def settings(home, model, out, **kw):
    given = dict(length=16, tokens=16 * 8 * 8, batch_size=8, lr=1e-2, warmup=1, log_every=1, eval_every=4,
                 eval_sequences=16, checkpoint_every=1, precision='fp32')
    return AdaptConfig(data=str(home), model=str(home / model), out=str(out), **given | kw)

@pytest.fixture(scope='module', params=['llama', 'bert'])
def adapted(request, home, tmp_path_factory):
    out = tmp_path_factory.mktemp('runs') / request.param
    return request.param, out, adapt(settings(home, request.param, out), progress=False)

def test_what_is_written(adapted, home):
    name, out, folder = adapted
    r = json.loads((folder / 'training.json').read_text())
    assert r['base'] == name and r['stages'][0]['steps'] == 8 and r['shift'] == (name == 'llama')
    assert r['nelbo']['value'] < r['before']['value']
    assert f"{r['nelbo']['bits_per_char']:.3f}" in (folder / 'README.md').read_text()
    assert str(home) not in (folder / 'training.json').read_text()

def test_bits_a_character_are_of_the_text(adapted):
    "Its characters, with the blank lines that this tokenizer does not see; tokens are its words, and the end."
    r = json.loads((adapted[2] / 'training.json').read_text())
    chars = len('\n\n'.join([TEXT] * 40)) / (8 * 40 + 1)
    assert r['nelbo']['chars_per_token'] == chars
    assert r['nelbo']['bits_per_char'] == pytest.approx(r['nelbo']['value'] / math.log(2) / chars)

def test_a_head_counts_the_same_characters(adapted, home, tmp_path):
    "Adapted, then given a head: both records are about the characters of the text, and not about what is decoded."
    cfg = FinetuneConfig(data=str(home), model=str(adapted[2]), out=str(tmp_path / 'head'), length=16, head_steps=1,
                         joint_steps=0, batch_size=8, precision='fp32')
    one, two = (json.loads((f / 'training.json').read_text()) for f in (adapted[2], finetune(cfg, progress=False)))
    assert one['nelbo']['chars_per_token'] == two['nelbo']['chars_per_token']

def test_all_weights_learn_and_the_average_is_saved(adapted):
    name, out, folder = adapted
    state = read_checkpoint(out)
    saved = load_file(folder / 'model.safetensors')
    average = {k.removeprefix('net.'): v for k, v in state['ema'].items()}
    assert all(torch.equal(saved[k], v) for k, v in average.items() if k in saved)
    assert len(saved.keys() & average.keys()) >= len(average) - 1
    assert any(not torch.equal(state['model'][k], v) for k, v in state['ema'].items())

def test_resumed_it_is_the_same_to_the_last_bit(adapted, home, tmp_path):
    name, out, folder = adapted
    cfg = settings(home, name, tmp_path / 'again')
    assert adapt(cfg, progress=False, stop=3) == tmp_path / 'again'
    again = adapt(cfg, progress=False)
    a, b = (load_file(f / 'model.safetensors') for f in (folder, again))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    losses = [[r['loss'] for r in read_log(o / 'log.jsonl') if 'loss' in r] for o in (out, tmp_path / 'again')]
    assert losses[0] == losses[1]

def test_then_it_samples_and_takes_a_head(adapted, home, tmp_path):
    name, out, folder = adapted
    assert navira.sample(navira.load(folder), 'mdlm', 4, prompt='the old', max_new_tokens=4, n=2).texts
    cfg = FinetuneConfig(data=str(home), model=str(folder), out=str(tmp_path), lora=2, length=16, head_steps=2,
                         joint_steps=2, batch_size=8, warmup=1, eval_sequences=8, precision='fp32')
    head = finetune(cfg, progress=False)
    model = navira.load(folder, head=head)
    assert navira.sample(model, 'navira-piecewise', 8, prompt='the old', max_new_tokens=6).texts

def test_gradient_checkpointing_changes_no_number(adapted, home, tmp_path):
    name, out, _ = adapted
    adapt(settings(home, name, tmp_path, gradient_checkpointing=True), progress=False, stop=2)
    losses = [[r['loss'] for r in read_log(o / 'log.jsonl') if 'loss' in r][:2] for o in (out, tmp_path)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

def test_refused(home, tmp_path):
    with says(ValueError, 'model: which network'): AdaptConfig(data='d', out='o')
    with says(ValueError, 'length=128', 'at most 64'): adapt(settings(home, 'bert', tmp_path / 'a', length=128))
    few = settings(home, 'bert', tmp_path / 'b', tokens=5)
    with says(ValueError, 'tokens=5', 'batch_size * length = 128'): adapt(few)
    assert not list(tmp_path.iterdir())
