"""Each kind of training: what it writes, what it changes, and that a stop changes nothing."""
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import navira
from navira.models.adapter import load_adapter
from navira.models.families import pretrained
from navira.models.load import load
from navira.models.transformers import TransformersLM
from navira.training.adapt import adapt
from navira.training.critic import train_critic
from navira.training.data import read_tokens
from navira.training.finetune import finetune
from navira.training.measures import evaluate_nelbo
from navira.training.pretrain import train
from navira.training.recipe import tokens_of
from navira.training.settings import (
    AdaptConfig, CriticConfig, FinetuneConfig, read_config, SudokuConfig)
from helpers.sample_api import says
from helpers.training import (  # noqa: F401
    assert_same, home, lines, losses, nano, one_thread, small, trained)

GRIDS = dict(data='sudoku:2x2', tokens=100 * 64 * 16, dim=32, blocks=2, heads=2, cond_dim=8,
             lr=5e-3, warmup=5, log_every=1, precision='fp32', eval_every=50, eval_sequences=32)
FEW = dict(batch_size=8, log_every=1, checkpoint_every=2, eval_every=4, eval_sequences=16,
           final_sequences=16, precision='fp32')

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

@pytest.fixture(scope='module')
def networks(pytestconfig): return pytestconfig.rootpath / 'tests' / 'pretrained'

def tune(corpus, model, out, stop=None, **kw):
    steps = dict(data=str(corpus), out=str(out), model=str(model), head_steps=4, joint_steps=4)
    return finetune(FinetuneConfig(**steps | FEW | kw), progress=False, stop=stop)

def adapted(data, model, out, stop=None, **kw):
    given = dict(data=str(data), out=str(out), model=str(model), length=16, tokens=8 * 16 * 6,
                 lr=1e-2, warmup=1)
    return adapt(AdaptConfig(**given | FEW | kw), progress=False, stop=stop)

def criticised(data, model, out, stop=None):
    cfg = CriticConfig(data=str(data), model=str(model), out=str(out), steps=6, blocks=1, **FEW)
    return train_critic(cfg, progress=False, stop=stop)

def checkpoint(folder): return torch.load(folder / 'last.pt', weights_only=True)
def record(folder): return json.loads((folder / 'training.json').read_text())

def weights(folder):
    "All tensors that a training has written"
    return {f'{p.name}:{k}': v for p in sorted(folder.glob('*.safetensors'))
            for k, v in load_file(p).items()}

KINDS = {     # what is trained, from which network, with which settings
    'a head': (tune, 'trained', {}), 'self-correction': (tune, 'trained', dict(objective='cdlm')),
    'an adapter and a head': (tune, 'llada', dict(lora=4, length=16)),
    'a critic': (criticised, 'trained', {}), 'an adapter': (adapted, 'llama', dict(lora=2))}

@pytest.mark.parametrize('kind', KINDS)
def test_a_stopped_run_goes_on_to_the_same_weights(kind, home, trained, golden, networks, tmp_path):
    "The losses are those of an undisturbed run, and no record names a folder of this machine."
    run, base, kw = KINDS[kind]
    base = dict(trained=trained / 'model', llada=golden / 'llada', llama=networks / 'llama')[base]
    whole = run(home, base, tmp_path / 'whole', **kw)
    for stop in (1, 3): assert run(home, base, tmp_path / 'parts', stop, **kw).name == 'parts'
    assert_same(weights(whole), weights(run(home, base, tmp_path / 'parts', **kw)))
    logs = [p.parent.relative_to(tmp_path / 'whole') for p in (tmp_path / 'whole').rglob('*.jsonl')]
    assert weights(whole) and logs
    for p in logs: assert_same(*(losses(tmp_path / run / p) for run in ('whole', 'parts')))
    for path in whole.glob('*training.json'):
        assert str(tmp_path) not in path.read_text() and str(home) not in path.read_text()

# pretraining

def test_held_out_text_is_not_trained_on(lines, tmp_path):
    train(nano(lines, tmp_path / 'run'), progress=False)
    tokens = tmp_path / 'run' / 'tokens'
    (ids, held), whole = tokens_of(tokens, 16), read_tokens(tokens / 'train')
    end = whole[len(ids):]
    assert (ids == whole[:len(ids)]).all() and len(held) >= 2 and held.size > len(end) - 16
    assert {*map(tuple, end[:held.size].reshape(-1, 16))} == {*map(tuple, held)}

def test_a_network_of_grids(home, tmp_path):
    "It writes digits, has learned something, and takes no text."
    torch.set_num_threads(1)
    grids = train(SudokuConfig(out=str(tmp_path / 'run'), **GRIDS), progress=False)
    lm, r, run = load(grids), record(grids), losses(tmp_path / 'run')
    assert (lm.config.boxes, lm.length, lm.tokenizer.decode([0, 1, 2, 3])) == ((2, 2), 16, '1234')
    first, last = (np.mean([run[s][0] for s in steps]) for steps in (range(1, 21), range(81, 101)))
    assert last < 1.1 < math.log(4) - .2 < first
    assert r['network']['boxes'] == [2, 2] and r['nelbo']['chars_per_token'] == 1
    text = navira.sample(lm, 'backbone', 4, seed=1, progress=False)[0]
    assert len(text) == 16 and set(text) <= set('1234')
    with says(ValueError, 'writes grids with boxes of 2 x 2'): tune(home, grids, tmp_path / 'b')

# fine-tuning

def test_finetuning_moves_what_it_should_and_keeps_the_record(home, tmp_path, trained):
    folder = tune(home, trained / 'model', tmp_path, joint_steps=2)
    base, model = load(trained / 'model').backbone, load(folder).backbone
    assert all(k.startswith('quality.') for k in checkpoint(tmp_path / 'head')['model'])
    assert not all(map(torch.equal, base.state_dict().values(), model.state_dict().values()))
    r = record(folder)
    assert [s['name'] for s in r['stages']] == ['train', 'head', 'joint']
    assert r['quality']['low'] <= r['quality']['auroc'] <= r['quality']['high']
    assert r['before']['nelbo']['n'] == r['nelbo']['n'] == 16

def test_a_run_keeps_the_parameters_of_its_objective(home, tmp_path, trained):
    tune(home, trained / 'model', tmp_path, stop=1, hyper=dict(fill=3))
    with says(ValueError, 'fill: 3 there, 4 now'):
        tune(home, trained / 'model', tmp_path, hyper=dict(fill=4))
    cfg = read_config(FinetuneConfig, out=tmp_path)
    assert finetune(cfg, progress=False, stop=2) == tmp_path

def test_minutes_shorten_both_stages(home, tmp_path, trained):
    folder = tune(home, trained / 'model', tmp_path, minutes=1e-4)
    assert all(s['steps'] < 4 for s in record(folder)['stages'][1:])

def test_self_correction_leaves_a_head_behind_and_takes_a_new_one(home, tmp_path, trained):
    one = dict(head_steps=1, joint_steps=0)
    first = tune(home, trained / 'model', tmp_path / 'a', **one)
    second = tune(home, first, tmp_path / 'b', objective='proseco')
    third = tune(home, second, tmp_path / 'c', **one)
    a, b = load(second), load(third)
    assert load(first).quality is not None and a.quality is None and b.quality is not None
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    names = [(s['name'], s['recipe'].get('objective')) for s in record(third)['stages']]
    assert names == [('train', None), ('head', 'prism'), ('joint', 'proseco'), ('head', 'prism')]
    r = record(second)
    assert all(0 <= c['kept']['value'] <= 1 for c in (r['correction'], r['before']['correction']))
    assert 'quality' not in r

def test_a_reflective_network_is_its_own_head(home, tmp_path, trained):
    folder = tune(home, trained / 'model', tmp_path, objective='reflective')
    model = load(folder)
    assert not [*model.quality.parameters()] and 'auroc' in record(folder)['quality']
    out = navira.sample(model, 'prism', 8, n=2, length=16, eta=.2, on=0.)
    assert (out.tokens != model.mask_id).all()

def test_a_critic_is_written_and_used(home, tmp_path, trained):
    folder = criticised(home, trained / 'model', tmp_path)
    r = json.loads((folder / 'critic-training.json').read_text())
    assert r['stages'][0]['steps'] == 6 and 0 < r['quality']['right'] < 1
    lm = load(trained / 'model')
    out = navira.sample(lm, 'token-critic', 8, n=3, critic=str(folder))
    assert not (out.tokens == lm.mask_id).any()

# networks of the transformers library

def test_an_adapter_is_written_and_loads_on_its_base_here_and_in_peft(home, golden, tmp_path):
    from peft import PeftModel
    tuned = tune(home, golden / 'llada', tmp_path, lora=4, length=16, lr=1e-2, head_lr=1e-2,
                 warmup=1)
    assert sorted(p.name for p in tuned.iterdir()) == [
        'adapter_config.json', 'adapter_model.safetensors', 'quality.safetensors', 'training.json']
    r, state = record(tuned), checkpoint(tmp_path / 'joint')['model']
    assert (r['base'], r['lora'], [s['name'] for s in r['stages']]) == ('llada', 4,
                                                                        ['head', 'joint'])
    assert r['parameters'] == sum(v.numel() for v in state.values())
    assert all('lora_' in k or k.startswith('quality.') for k in state)
    model, base, x = load(golden / 'llada', head=tuned), load(golden / 'llada'), torch.full(
        (1, 8), 277)
    assert not [n for n, _ in model.named_parameters() if 'lora' in n]                  # merged
    h = model(x).h
    assert (h - base(x).h).abs().max() > 1e-4
    net = PeftModel.from_pretrained(base.net, str(tuned)).get_base_model()
    torch.testing.assert_close(net.base_model(input_ids=x).last_hidden_state, h)
    with says(ValueError, 'another base model'): load(golden / 'a2d-llama', head=tuned)

@pytest.mark.parametrize('name', ['bert', 'dream', 'modernbert'])
def test_a_head_alone_leaves_the_network_of_each_family_as_it_is(home, golden, tmp_path, name):
    folder = tune(home, golden / name, tmp_path, length=16)
    assert not (folder / 'adapter_config.json').exists()
    model, base, x = load(golden / name, head=folder), load(golden / name), torch.full((1, 8), 3)
    with torch.inference_mode():
        torch.testing.assert_close(model(x).h, base(x).h)
        assert model(x).quality().abs().max() > 0

def test_an_adapter_makes_a_masked_diffusion_model_of_its_base(home, networks, tmp_path):
    base, run = networks / 'llama', tmp_path / 'a'
    folder = adapted(home, base, run, lora=2, tokens=16 * 8 * 30)
    names = set(checkpoint(run)['model'])
    assert {n for n in names if 'lora_' not in n} == {'mask_embedding'}
    r = record(folder)
    assert r['nelbo']['value'] < r['before']['nelbo']['value']
    model = load(base, head=run)          # whatever the seed: the new word is replaced
    held = tokens_of(run / 'tokens', 16)[1][:16]
    assert evaluate_nelbo(model, held, 8)['value'] == pytest.approx(r['nelbo']['value'], rel=.01)
    assert model.shift and not model.config.is_causal and model.quality is None
    with says(ValueError, 'mask_id=3', 'adapter'): load(base, head=folder, mask_id=3)
    with says(ValueError, 'another base model'): load_adapter(pretrained(networks / 'bert'), folder)

def test_an_adapted_network_loads_samples_and_takes_a_head(home, networks, tmp_path):
    folder = adapted(home, networks / 'llama', tmp_path / 'a', tokens=16 * 8 * 8)
    r, state = record(folder), checkpoint(tmp_path / 'a')
    average = {k.removeprefix('net.'): v for k, v in state['ema'].items()}
    saved = load_file(folder / 'model.safetensors')
    assert all(torch.equal(v, average[k]) for k, v in saved.items() if k in average)
    made = read_tokens(tmp_path / 'a' / 'tokens' / 'validation')
    characters = len((home / 'validation.txt').read_text()) / len(made)
    bits = r['nelbo']['value'] / math.log(2) / characters
    assert r['base'] == 'llama' and r['shift']
    assert r['nelbo']['bits_per_char'] == pytest.approx(bits)
    head = tune(home, folder, tmp_path / 'b', lora=2, length=16)
    assert record(head)['nelbo']['chars_per_token'] == characters
    for model, policy in ((load(folder), 'mdlm'), (load(folder, head=head), 'navira-piecewise')):
        assert navira.sample(model, policy, 8, prompt='the old', max_new_tokens=6).texts

@pytest.mark.parametrize('lora', [0, 4])
def test_the_network_that_is_sampled_has_no_dropout(home, golden, tmp_path, monkeypatch, lora):
    "A frozen BERT has no dropout, one that learns has it where it learns; batches are as set."
    seen, hidden = set(), TransformersLM.hidden
    def watched(model, x):
        assert len(x) <= 8
        seen.add((torch.is_grad_enabled(), any(m.training for m in model.net.modules())))
        return hidden(model, x)
    monkeypatch.setattr(TransformersLM, 'hidden', watched)
    tune(home, golden / 'bert', tmp_path, lora=lora, length=16, head_steps=0 if lora else 4)
    assert seen == {(False, False), (True, bool(lora))}

@pytest.mark.parametrize('base, kw, words', [
    ('trained', dict(lora=4), ('lora=4', "MDLM's")),
    ('trained', dict(data='sudoku'), ("data='sudoku'", 'writes text')),
    ('llada', dict(objective='proseco'), ('proseco', 'transformers library')),
    ('llada', dict(length=1000), ('length=1000: this network takes at most',))])
def test_mistakes_begin_nothing(base, kw, words, home, golden, tmp_path, trained):
    base = trained / 'model' if base == 'trained' else golden / base
    with says(ValueError, *words): tune(home, base, tmp_path / 'x', **kw)
    assert not (tmp_path / 'x' / 'run.json').exists()
