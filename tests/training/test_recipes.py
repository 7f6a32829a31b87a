"""Each kind of training: what it writes, what it changes, and that a stop changes nothing."""
import json
import math
from functools import cache

import pytest
import torch
from safetensors.torch import load_file

import navira
from navira.models.load import load
from navira.models.transformers import TransformersLM
from navira.training.data import read_tokens
from navira.training.measures import evaluate_nelbo
from navira.training.train import train
from navira.training.recipe import tokens_of
from navira.training.settings import (
    AdaptConfig, CriticConfig, FinetuneConfig)
from helpers.sample_api import says
from helpers.training import (  # noqa: F401
    assert_same, assert_same_weights, home, lines, losses, nano, one_thread, trained)

FEW = dict(batch_size=8, log_every=1, checkpoint_every=2, eval_every=50, eval_sequences=16,
           final_sequences=16, precision='fp32')
STEPS = dict(head_steps=4, joint_steps=4) | FEW
ADAPT = dict(length=16, tokens=8 * 16 * 6, lr=1e-2, warmup=1) | FEW

@pytest.fixture(scope='module')
def networks(trained, pytestconfig):
    "What is trained further: a model of ours, LLaDA's layout, a Llama, a BERT"
    tests = pytestconfig.rootpath / 'tests'
    return dict(trained=trained / 'model', llada=tests / 'golden' / 'llada',
                bert=tests / 'golden' / 'bert', llama=tests / 'pretrained' / 'llama')

def training(config, usual):
    def run(home, model, out, stop=None, **kw):
        given = dict(data=str(home), model=str(model), out=str(out)) | usual | kw
        return train(config(**given), progress=False, stop=stop)
    return run

tune, adapted = training(FinetuneConfig, STEPS), training(AdaptConfig, ADAPT)
criticised = training(CriticConfig, dict(steps=6, blocks=1) | FEW)

KINDS = {     # what is trained, from which network, with which settings
    'a head': (tune, 'trained', {}), 'a critic': (criticised, 'trained', {}),
    'an adapter and a head': (tune, 'llada', dict(lora=4, length=16, lr=1e-2, head_lr=1e-2,
                                                  warmup=1)),
    'an adapter': (adapted, 'llama', dict(lora=2))}

@pytest.fixture(scope='module')
def whole(home, networks, tmp_path_factory):
    "kind -> the result of a run that was never disturbed"
    @cache
    def made(kind):
        run, base, kw = KINDS[kind]
        return run(home, networks[base], tmp_path_factory.mktemp('whole'), **kw)
    return made

def checkpoint(folder): return torch.load(folder / 'last.pt', weights_only=True)
def record(folder): return json.loads((folder / 'training.json').read_text())

def weights(folder):
    "All tensors that a training has written"
    return {f'{p.name}:{k}': v for p in sorted(folder.glob('*.safetensors'))
            for k, v in load_file(p).items()}

@pytest.mark.parametrize('kind', KINDS)
def test_a_stopped_run_goes_on_to_the_same_weights(kind, home, networks, whole, tmp_path):
    "The losses are those of an undisturbed run, and no record names a folder of this machine."
    run, base, kw = KINDS[kind]
    assert run(home, networks[base], tmp_path, 3, **kw) == tmp_path
    assert_same_weights(weights(whole(kind)), weights(run(home, networks[base], tmp_path, **kw)))
    logs = [p.parent.relative_to(tmp_path) for p in tmp_path.rglob('*.jsonl')]
    assert logs
    for p in logs: assert_same(losses(whole(kind).parent / p), losses(tmp_path / p))
    for path in whole(kind).glob('*training.json'):
        assert '/tmp' not in path.read_text() and str(home) not in path.read_text()

# pretraining

def test_held_out_text_is_not_trained_on(lines, tmp_path):
    train(nano(lines, tmp_path / 'run'), progress=False)
    tokens = tmp_path / 'run' / 'tokens'
    (ids, held), every = tokens_of(tokens, 16), read_tokens(tokens / 'train')
    end = every[len(ids):]
    assert (ids == every[:len(ids)]).all() and len(held) >= 2 and held.size > len(end) - 16
    assert {*map(tuple, end[:held.size].reshape(-1, 16))} == {*map(tuple, held)}

def test_a_network_of_grids_writes_digits_and_takes_no_text(home, tmp_path):
    grids = train(nano(home, tmp_path / 'run', data='sudoku:2x2'), progress=False)
    lm = load(grids)
    assert (lm.config.boxes, lm.length, lm.tokenizer.decode([0, 1, 2, 3])) == ((2, 2), 16, '1234')
    text = navira.sample(lm, 'backbone', 4, seed=1, progress=False)[0]
    assert len(text) == 16 and set(text) <= set('1234')
    with says(ValueError, 'writes grids with boxes of 2 x 2'): tune(home, grids, tmp_path / 'b')

# fine-tuning

def test_the_first_stage_moves_the_head_alone(networks, whole):
    folder = whole('a head')
    base, model = load(networks['trained']).backbone, load(folder).backbone
    assert all(k.startswith('quality.') for k in checkpoint(folder.parent / 'head')['model'])
    assert not all(map(torch.equal, base.state_dict().values(), model.state_dict().values()))
    assert [s['name'] for s in record(folder)['stages']] == ['train', 'head', 'joint']

def test_self_correction_leaves_a_head_behind_and_takes_a_new_one(home, tmp_path, whole):
    second = tune(home, whole('a head'), tmp_path / 'b', objective='proseco')
    third = tune(home, second, tmp_path / 'c', head_steps=1, joint_steps=0)
    a, b = load(second), load(third)
    assert a.quality is None and b.quality is not None
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    names = [(s['name'], s['recipe'].get('objective')) for s in record(third)['stages'][2:]]
    assert names == [('joint', 'prism'), ('joint', 'proseco'), ('head', 'prism')]

def test_a_reflective_network_is_its_own_head_and_a_critic_is_used(home, tmp_path, networks, whole):
    model = load(tune(home, networks['trained'], tmp_path, objective='reflective'))
    assert not [*model.quality.parameters()]
    plain, critic = load(networks['trained']), str(whole('a critic'))
    for lm, policy, how in ((model, 'prism', dict(eta=.2, on=0.)),
                            (plain, 'token-critic', dict(critic=critic))):
        out = navira.sample(lm, policy, 8, n=2, length=16, **how)
        assert (out.tokens != lm.mask_id).all()

# networks of the transformers library

def test_an_adapter_loads_on_its_base_here_and_in_peft(networks, whole):
    from peft import PeftModel
    tuned = whole('an adapter and a head')
    state = checkpoint(tuned.parent / 'joint')['model']
    assert all('lora_' in k or k.startswith('quality.') for k in state)
    model, base = load(networks['llada'], head=tuned), load(networks['llada'])
    assert not [n for n, _ in model.named_parameters() if 'lora' in n]                  # merged
    x = torch.full((1, 8), 277)
    h = model(x).h
    assert (h - base(x).h).abs().max() > 1e-4
    net = PeftModel.from_pretrained(base.net, str(tuned)).get_base_model()
    torch.testing.assert_close(net.base_model(input_ids=x).last_hidden_state, h)

def test_an_adapter_makes_a_masked_diffusion_model_of_its_base(networks, whole):
    base, folder = networks['llama'], whole('an adapter')
    run, r = folder.parent, record(folder)
    assert {n for n in checkpoint(run)['model'] if 'lora_' not in n} == {'mask_embedding'}
    model = load(base, head=run)                      # whatever the seed: the new word is replaced
    assert r['nelbo']['value'] < r['before']['nelbo']['value']
    held = tokens_of(run / 'tokens', 16)[1][:16]
    assert evaluate_nelbo(model, held, 8)['value'] == pytest.approx(r['nelbo']['value'], rel=.01)
    assert model.shift and not model.config.is_causal and model.quality is None
    with says(ValueError, 'mask_id=3', 'adapter'): load(base, head=folder, mask_id=3)

def test_an_adapted_network_is_the_average_and_takes_a_head(home, networks, tmp_path):
    folder = adapted(home, networks['llama'], tmp_path / 'a')
    nelbo, average = record(folder)['nelbo'], checkpoint(tmp_path / 'a')['ema']
    for k, v in load_file(folder / 'model.safetensors').items():
        assert torch.equal(v, average.get(f'net.{k}', v))
    made = read_tokens(tmp_path / 'a' / 'tokens' / 'validation')
    characters = len((home / 'validation.txt').read_text()) / len(made)
    assert nelbo['bits_per_char'] == pytest.approx(nelbo['value'] / math.log(2) / characters)
    head = tune(home, folder, tmp_path / 'b', lora=2, length=16)
    model = load(folder, head=head)
    assert navira.sample(model, 'prism', 8, prompt='the old', max_new_tokens=6).texts

@pytest.mark.parametrize('lora', [0, 4])
def test_the_network_that_is_sampled_has_no_dropout(home, networks, tmp_path, monkeypatch, lora):
    "A frozen BERT has no dropout; one that learns has it where it learns; batches are as set."
    seen, hidden = set(), TransformersLM.hidden
    def watched(model, x):
        assert len(x) <= 8
        seen.add((torch.is_grad_enabled(), any(m.training for m in model.net.modules())))
        return hidden(model, x)
    monkeypatch.setattr(TransformersLM, 'hidden', watched)
    folder = tune(home, networks['bert'], tmp_path, lora=lora, length=16,
                  head_steps=0 if lora else 4)
    assert seen == {(False, False), (True, bool(lora))}
    assert (folder / 'adapter_config.json').exists() == bool(lora)

@pytest.mark.parametrize('base, kw, words', [
    ('trained', dict(lora=4), ('lora=4', "MDLM's")),
    ('trained', dict(data='sudoku'), ("data='sudoku'", 'writes text')),
    ('llada', dict(objective='proseco'), ('proseco', 'transformers library')),
    ('llada', dict(length=1000), ('length=1000: this network takes at most',))])
def test_mistakes_begin_nothing(base, kw, words, home, networks, tmp_path):
    with says(ValueError, *words): tune(home, networks[base], tmp_path / 'x', **kw)
    assert not (tmp_path / 'x' / 'run.json').exists()
