"""Each kind of training: what it writes, what it changes, and that a stop changes nothing."""
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import navira
from navira.models.load import load
from navira.models.transformers import TransformersLM
from navira.models.adapter import load_adapter
from navira.models.families import pretrained
from navira.training.adapt import adapt
from navira.training.critic import train_critic
from navira.training.data import read_tokens
from navira.training.finetune import finetune
from navira.training.measures import evaluate_nelbo
from navira.training.pretrain import train
from navira.training.recipe import tokens_of
from navira.training.settings import (
    AdaptConfig, CriticConfig, FinetuneConfig, SudokuConfig)
from helpers.sample_api import says
from helpers.training import (  # noqa: F401
    assert_same, home, lines, losses, nano, one_thread, small, trained)

GRIDS = dict(data='sudoku:2x2', tokens=100 * 64 * 16, dim=32, blocks=2, heads=2, cond_dim=8,
             batch_size=64,
             lr=5e-3, warmup=5, log_every=1, precision='fp32', eval_every=50, eval_sequences=32,
             checkpoint_every=20)
FEW = dict(batch_size=8, log_every=1, checkpoint_every=2, eval_every=4, eval_sequences=16,
           final_sequences=16, precision='fp32')

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

@pytest.fixture(scope='module')
def networks(pytestconfig): return pytestconfig.rootpath / 'tests' / 'pretrained'

@pytest.fixture(scope='module')
def grids(tmp_path_factory):
    "A run on 4 x 4 grids."
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp('grids') / 'run'
    return train(SudokuConfig(out=str(out), **GRIDS), progress=False)

def prism(data, model, out, **kw):
    steps = dict(data=str(data), out=str(out), model=str(model), head_steps=4, joint_steps=4)
    return FinetuneConfig(**steps | FEW | kw)

def checkpoint(folder): return torch.load(folder / 'last.pt', weights_only=True)
def record(folder): return json.loads((folder / 'training.json').read_text())

def weights(folder):
    "All tensors that a training has written."
    return {f'{p.name}:{k}': v for p in sorted(folder.glob('*.safetensors')) for k,
            v in load_file(p).items()}

# every kind

@pytest.mark.parametrize('kind', ['prism', 'cdlm', 'lora', 'critic', 'bert', 'llama-lora'])
def test_a_stopped_run_goes_on_to_the_same_weights(kind, home, trained, golden, networks, tmp_path):
    "Whatever is trained, losses and weights are those of an undisturbed run."
    def run(name, stop=None):
        where = dict(data=str(home), out=str(tmp_path / name))
        if kind == 'critic':
            cfg = CriticConfig(model=str(trained / 'model'), steps=6, blocks=1, **where | FEW)
            return train_critic(cfg, progress=False, stop=stop)
        if kind in ('bert', 'llama-lora'):
            name, _, lora = kind.partition('-')
            cfg = AdaptConfig(model=str(networks / name), length=16, tokens=8 * 16 * 6,
                              lora=2 * bool(lora), **where | FEW)
            return adapt(cfg, progress=False, stop=stop)
        model = golden / 'llada' if kind == 'lora' else trained / 'model'
        more = dict(lora=4, length=16) if kind == 'lora' else dict(objective=kind)
        return finetune(prism(home, model, tmp_path / name, **more), progress=False, stop=stop)
    whole = run('whole')
    for stop in (1, 3): assert run('parts', stop) == tmp_path / 'parts'
    again = run('parts')
    assert weights(whole)
    assert_same(weights(whole), weights(again))
    logs = [p.parent.relative_to(tmp_path / 'whole')
            for p in (tmp_path / 'whole').rglob('log.jsonl')]
    assert logs
    for p in logs: assert_same(*(losses(tmp_path / run / p) for run in ('whole', 'parts')))
    for path in whole.glob('*training.json'):
        assert str(tmp_path) not in path.read_text() and str(home) not in path.read_text()

# pretraining

def test_held_out_text_is_not_trained_on(lines, tmp_path):
    train(nano(lines, tmp_path / 'run'), progress=False)
    tokens = tmp_path / 'run' / 'tokens'
    (ids, held), whole = tokens_of(tokens, 16), read_tokens(tokens / 'train')
    assert len(held) >= 2 and not (tokens / 'validation').exists()
    end = whole[len(ids):]
    assert (ids == whole[:len(ids)]).all() and held.size > len(end) - 16
    rows = {tuple(r) for r in end[:held.size].reshape(-1, 16)}
    assert rows == {tuple(r) for r in held}

# fine-tuning

def test_finetuning_moves_what_it_should_and_keeps_the_record(home, tmp_path, trained):
    folder = finetune(prism(home, trained / 'model', tmp_path, joint_steps=2), progress=False)
    base, model = load(trained / 'model'), load(folder)
    head = checkpoint(tmp_path / 'head')
    assert model.quality is not None and all(k.startswith('quality.') for k in head['model'])
    assert any(not torch.equal(v, model.backbone.state_dict()[k]) for k,
               v in base.backbone.state_dict().items())
    r = record(folder)
    assert [s['name'] for s in r['stages']] == ['train', 'head', 'joint']
    assert r['quality']['low'] <= r['quality']['auroc'] <= r['quality']['high']
    assert r['before']['nelbo']['n'] == r['nelbo']['n'] == 16

def test_self_correction_leaves_a_head_behind_and_takes_a_new_one(home, tmp_path, trained):
    one = dict(head_steps=1, joint_steps=0)
    first = finetune(prism(home, trained / 'model', tmp_path / 'a', **one), progress=False)
    cfg = prism(home, first, tmp_path / 'b', objective='proseco', joint_steps=4)
    second = finetune(cfg, progress=False)
    third = finetune(prism(home, second, tmp_path / 'c', **one), progress=False)
    a, b = load(second), load(third)
    assert load(first).quality is not None and a.quality is None and b.quality is not None
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    names = [(s['name'], s['recipe'].get('objective')) for s in record(third)['stages']]
    assert names == [('train', None), ('head', 'prism'), ('joint', 'proseco'), ('head', 'prism')]
    r = record(second)
    for c in (r['correction'], r['before']['correction']): assert 0 <= c['kept']['value'] <= 1
    assert 'quality' not in r

def test_a_reflective_network_is_its_own_head(home, tmp_path, trained):
    cfg = prism(home, trained / 'model', tmp_path, objective='reflective', joint_steps=4)
    folder = finetune(cfg, progress=False)
    model = load(folder)
    assert not [*model.quality.parameters()]
    assert 'auroc' in record(folder)['quality']
    out = navira.sample(model, 'prism', 8, n=2, length=16, eta=.2, on=0.)
    assert (out.tokens != model.mask_id).all()

# adapters

@pytest.fixture(scope='module')
def tuned(home, golden, tmp_path_factory):
    out = tmp_path_factory.mktemp('lora')
    cfg = prism(home, golden / 'llada', out, lora=4, length=16, lr=1e-2, head_lr=1e-2, warmup=1)
    return finetune(cfg, progress=False)

def test_an_adapter_is_written_and_loads_on_its_base(tuned, golden):
    assert sorted(p.name for p in tuned.iterdir()) == [
        'adapter_config.json', 'adapter_model.safetensors', 'quality.safetensors',
        'training.json']
    r = record(tuned)
    assert r['base'] == 'llada' and r['lora'] == 4 and [s['name'] for s in r['stages']] == ['head',
        'joint']
    state = checkpoint(tuned.parent / 'joint')['model']
    assert r['parameters'] == sum(v.numel() for v in state.values())
    assert all('lora_' in k or k.startswith('quality.') for k in state)
    model, base = load(golden / 'llada', head=tuned), load(golden / 'llada')
    assert not [n for n, _ in model.named_parameters() if 'lora' in n]                  # merged
    x = torch.full((1, 8), model.mask_id)
    with torch.inference_mode():
        assert (model(x).logits(x == 277) - base(x).logits(x
                                                           == 277)).nan_to_num().abs().max() > 1e-4
    assert (navira.sample(model, 'navira-piecewise', 8, length=8, eta=.4,
                          on=0.).tokens != 277).all()
    with says(ValueError, 'another base model'): load(golden / 'a2d-llama', head=tuned)

def test_peft_opens_an_adapter_too(tuned, golden):
    from peft import PeftModel
    base, x = load(golden / 'llada'), torch.full((1, 8), 277)
    ours = load(golden / 'llada', head=tuned)(x).h
    net = PeftModel.from_pretrained(base.net, str(tuned)).get_base_model()
    torch.testing.assert_close(net.base_model(input_ids=x).last_hidden_state, ours)

@pytest.mark.parametrize('name', ['bert', 'dream', 'modernbert', 'a2d-qwen3'])
def test_a_head_alone_leaves_the_network_of_each_family_as_it_is(home, golden, tmp_path, name):
    folder = finetune(prism(home, golden / name, tmp_path, length=16), progress=False)
    assert not (folder / 'adapter_config.json').exists()
    model, base, x = load(golden / name, head=folder), load(golden / name), torch.full((1, 8), 3)
    with torch.inference_mode():
        torch.testing.assert_close(model(x).h, base(x).h)
        assert model(x).quality().abs().max() > 0

def test_mistakes_in_fine_tuning(home, golden, tmp_path, trained):
    def tune(model, **kw): return finetune(prism(home, model, tmp_path / 'x', **kw), progress=False)
    with says(ValueError, 'lora=4', "MDLM's"): tune(trained / 'model', lora=4)
    with says(ValueError, 'proseco', 'transformers library'):
        tune(golden / 'llada', objective='proseco')
    with says(ValueError, 'length=1000: this network takes at most'):
        tune(golden / 'llada', length=1000)
    assert not (tmp_path / 'x').exists()

# adapting

def test_an_adapter_makes_a_masked_diffusion_model_of_its_base(home, networks, tmp_path):
    base = networks / 'llama'
    cfg = AdaptConfig(data=str(home), model=str(base), out=str(tmp_path / 'a'), lora=2, length=16,
                      tokens=16 * 8 * 30, lr=1e-2, warmup=1, **FEW | dict(eval_every=30))
    folder = adapt(cfg, progress=False)
    names = set(checkpoint(tmp_path / 'a')['model'])
    assert {n for n in names if 'lora_' not in n} == {'mask_embedding'}
    r = record(folder)
    assert r['nelbo']['value'] < r['before']['nelbo']['value']
    model = load(base, head=tmp_path / 'a')          # whatever the seed: the new word is replaced
    held = tokens_of(tmp_path / 'a' / 'tokens', 16)[1][:16]
    assert evaluate_nelbo(model, held, 8)['value'] == pytest.approx(r['nelbo']['value'], rel=.01)
    assert model.shift and not model.config.is_causal and model.quality is None
    with says(ValueError, 'mask_id=3', 'adapter'): load(base, head=folder, mask_id=3)
    with says(ValueError, 'another base model'): load_adapter(pretrained(networks / 'bert'), folder)
    head = dict(lora=2, length=16, head_steps=2, joint_steps=2)
    navira.save(model, tmp_path / 'whole')
    tuned = finetune(prism(home, tmp_path / 'whole', tmp_path / 'b', **head), progress=False)
    assert load(tmp_path / 'whole', head=tuned).quality is not None
    assert not model.tokenizer.id_to_token(model.mask_id) is None

def test_an_adapted_network_loads_samples_and_takes_a_head(home, networks, tmp_path):
    given = dict(length=16, tokens=16 * 8 * 8, lr=1e-2, warmup=1)
    cfg = AdaptConfig(data=str(home), model=str(networks / 'llama'), out=str(tmp_path / 'a'),
                      **given | FEW)
    folder = adapt(cfg, progress=False)
    r, state = record(folder), checkpoint(tmp_path / 'a')
    assert r['base'] == 'llama' and r['shift']
    assert r['nelbo']['value'] < r['before']['nelbo']['value']
    assert any(not torch.equal(state['model'][k], v) for k, v in state['ema'].items())
    average = {k.removeprefix('net.'): v for k, v in state['ema'].items()}
    saved = load_file(folder / 'model.safetensors')
    assert all(torch.equal(v, average[k]) for k, v in saved.items() if k in average)
    text = (home / 'validation.txt').read_text()
    made = read_tokens(tmp_path / 'a' / 'tokens' / 'validation')
    assert r['nelbo']['chars_per_token'] == len(text) / len(made)
    bits = r['nelbo']['value'] / math.log(2) / r['nelbo']['chars_per_token']
    assert r['nelbo']['bits_per_char'] == pytest.approx(bits)
    assert navira.sample(load(folder), 'mdlm', 4, prompt='the old', max_new_tokens=4, n=2).texts
    head = finetune(prism(home, folder, tmp_path / 'b', lora=2, length=16), progress=False)
    assert record(head)['nelbo']['chars_per_token'] == r['nelbo']['chars_per_token']
    model = load(folder, head=head)
    assert navira.sample(model, 'navira-piecewise', 8, prompt='the old', max_new_tokens=6).texts

# a critic

def test_a_critic_is_written_and_used(home, tmp_path, trained):
    cfg = CriticConfig(data=str(home), model=str(trained / 'model'), out=str(tmp_path), steps=4,
                       blocks=1, **FEW)
    folder = train_critic(cfg, progress=False)
    r = json.loads((folder / 'critic-training.json').read_text())
    assert r['stages'][0]['steps'] == 4 and 0 < r['quality']['right'] < 1
    lm = load(trained / 'model')
    out = navira.sample(lm, 'token-critic', 8, n=3, critic=str(folder))
    assert not (out.tokens == lm.mask_id).any()

# grids

def test_a_network_of_grids(grids):
    "It loads, writes digits, has learned something, and its record says where it comes from."
    lm, run = load(grids), grids.parent
    assert lm.config.boxes == (2,
                               2) and lm.length == 16 and lm.tokenizer.decode([0, 1, 2,
                                   3]) == '1234'
    first, last = (np.mean([losses(run)[s][0] for s in steps])
                   for steps in (range(1, 21), range(81, 101)))
    assert last < 1.1 < math.log(4) - .2 < first
    r = record(grids)
    assert r['network']['boxes'] == [2, 2] and r['nelbo']['chars_per_token'] == 1
    text = navira.sample(lm, 'backbone', 4, seed=1, progress=False)[0]
    assert len(text) == 16 and set(text) <= set('1234')

def test_data_that_a_model_does_not_write(grids, tmp_path, home):
    "Grids for a model of texts, and text for one of grids."
    with pytest.raises(ValueError, match="data='sudoku': the model embedded writes text"):
        finetune(FinetuneConfig(data='sudoku', out=str(tmp_path / 'a')), progress=False)
    with pytest.raises(ValueError, match='writes grids with boxes of 2 x 2'):
        finetune(prism(home, grids, tmp_path / 'b'), progress=False)

@pytest.mark.parametrize('lora', [0, 4])
def test_the_network_that_is_sampled_has_no_dropout(home, golden, tmp_path, monkeypatch, lora):
    """BERT is configured with dropout: a frozen one has none, one that learns has it where it
    learns."""
    seen, hidden = set(), TransformersLM.hidden
    def watched(model, x):
        # the batch size holds for every pass
        assert len(x) <= 8
        seen.add((torch.is_grad_enabled(), any(m.training for m in model.net.modules())))
        return hidden(model, x)
    monkeypatch.setattr(TransformersLM, 'hidden', watched)
    cfg = prism(home, golden / 'bert', tmp_path, lora=lora, length=16, head_steps=0 if lora else 4,
                eval_every=2)
    finetune(cfg, progress=False)
    assert seen == {(False, False), (True, bool(lora))}

