"""One function, `load`, for a folder, a file, a run, a name on the Hub, or the embedded model."""
import json, os
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models

import navira
from navira.models.families import pretrained
from navira.models.load import load, save
from helpers.checkpoints import (  # noqa: F401
    HEAD, TINY, X, bare, hub_folder, no_grad, noisy, plain_forward, refused, same, small_tokenizer,
    words)
from helpers.sample_api import says

# --- folders ----------------------------------------------------------------------------------

@pytest.mark.parametrize('config', [TINY, HEAD])
@pytest.mark.parametrize('kept', [None, torch.bfloat16])
def test_saved_and_loaded_it_is_the_same(tmp_path, config, kept):
    model, folder = noisy(config), tmp_path / 'a' / 'b'
    model.tokenizer = small_tokenizer()
    save(model, folder, kept)
    again = load(str(folder))
    want = model if kept is None else noisy(config).to(kept).float()
    assert same(again, want) and again.config == config and not again.training
    assert again.tokenizer.encode('c d').ids == [2, 3]
    assert again.tokenizer.token_to_id('<|mask|>') == 10
    files = sorted(p.name for p in folder.iterdir())
    assert files == ['config.json', 'model.safetensors', 'tokenizer.json']

SIZES = 'vocab_size', 'hidden_dim', 'cond_dim', 'n_blocks', 'n_heads', 'model_length'

@pytest.mark.parametrize(
    'settings, words',
    [
        *((({k: v}), (f'config.json: {k}={v!r}: expected',)) for k in SIZES for v in (10**12,)),
        (dict(n_blocks=3), ('Missing key(s) in state_dict: "backbone.blocks.2',)),
        (dict(quality_blocks=None), ('Unexpected key(s) in state_dict: "quality.',)),
        (dict(model_type='mamba'), ("'mamba'", 'mdlm')),
        (dict(time_conditioning=True), ('config.json', 'time_conditioning=True')),
    ],
)
def test_a_configuration_that_does_not_fit(tmp_path, settings, words):
    save(noisy(), tmp_path / 'm')
    file = tmp_path / 'm' / 'config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    refused(tmp_path / 'm', *words)

# --- the Hub ----------------------------------------------------------------------------------

@pytest.fixture
def hub(monkeypatch):
    "{repository: folder}, and what was asked for: (repository, revision, patterns)"
    folders, asked = {}, []
    def download(repo, allow_patterns, revision=None):
        asked.append((repo, revision, tuple(allow_patterns)))
        if repo not in folders: raise ConnectionError('no route')
        return str(folders[repo])
    monkeypatch.setattr('huggingface_hub.snapshot_download', download)
    return folders, asked

def test_of_a_repository_the_configuration_comes_first_and_no_code(tmp_path, hub, pytestconfig):
    folders, asked = hub
    folders['kuleshov-group/mdlm-owt'] = hub_folder(tmp_path / 'hf', noisy(TINY))
    folders['GSAI-ML/LLaDA-8B-Base'] = pytestconfig.rootpath / 'tests' / 'golden' / 'llada'
    assert same(load('kuleshov-group/mdlm-owt'), noisy(TINY))
    assert load('GSAI-ML/LLaDA-8B-Base', revision='abc').mask_id == 277
    assert [a[2] for a in asked[::2]] == [('config.json',)] * 2
    assert [a[:2] for a in asked[2:]] == [('GSAI-ML/LLaDA-8B-Base', 'abc')] * 2
    assert not any(p.endswith(('.py', '.pt', '.pkl')) for a in asked for p in a[2])
    assert not any(p.endswith('.bin') for p in asked[3][2])

def test_mdlms_repositories_get_the_tokenizer_of_gpt2(tmp_path, hub):
    config = replace(TINY, vocab_size=50258, mask_id=50257)
    name, gpt2 = 'kuleshov-group/mdlm-no_flashattn-fp32-owt', tmp_path / 'gpt2'
    hub[0].update({name: hub_folder(tmp_path / 'hf', noisy(config)), 'openai-community/gpt2': gpt2})
    gpt2.mkdir()
    vocab = {f'w{i}': i for i in range(50257)}
    Tokenizer(models.WordLevel(vocab, unk_token='w0')).save(str(gpt2 / 'tokenizer.json'))
    assert load(name).tokenizer.token_to_id('<|mask|>') == 50257

def test_what_the_hub_does_not_have(tmp_path, hub):
    folders, asked = hub
    folders['state-spaces/mamba'] = hub_folder(tmp_path / 'hf', noisy(TINY), model_type='mamba')
    with says(ValueError, "'mamba'", 'llada', 'mdlm'): load('state-spaces/mamba')
    assert len(asked) == 1                                      # not its weights
    refused('kuleshov-group/mdlm-own', 'ConnectionError', 'HF_HUB_OFFLINE',
            '`hf download kuleshov-group/mdlm-own`', 'navira.load()', error=FileNotFoundError)

# --- tokenizers -------------------------------------------------------------------------------

def marked_at(i): return words(*'abcdefghij'[:i], '<|mask|>', *'abcdefghij'[i:])

@pytest.mark.parametrize('tok, part', [
    (marked_at(7), "token 10 is 'j'; the model has 11 tokens, and its mask is token 10"),
    (words(*'abcdefghijk'), "token 10 is 'k'"),
    (words(*'abcdefghi', **{'<|mask|>': 10, 'z': 99}), 'its last token is 99')])
def test_a_tokenizer_of_another_model(tmp_path, tok, part):
    "The blank would stay in the text, as letters."
    save(noisy(), tmp_path / 'm')
    tok.save(str(tmp_path / 'm' / 'tokenizer.json'))
    for source in (tmp_path / 'm', tmp_path / 'm' / 'model.safetensors'):
        with says(ValueError, 'tokenizer.json: ', part): load(source)

def edited(tmp_path, **settings):
    "The embedded model, its tokenizer.json changed."
    save(load(), tmp_path / 'm')
    file = tmp_path / 'm' / 'tokenizer.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return tmp_path / 'm'

def test_a_tokenizer_neither_cuts_nor_fills_up_a_prompt(tmp_path):
    text, cut = 'It was a dark and stormy night', dict(
        direction='Right', max_length=4, strategy='LongestFirst', stride=0)
    filled = dict(strategy=dict(Fixed=40), direction='Right', pad_to_multiple_of=None, pad_id=0,
                  pad_type_id=0, pad_token='a')
    folder, want = (
        edited(tmp_path, truncation=cut, padding=filled),
        load().tokenizer.encode(text).ids,
    )
    assert load(folder).tokenizer.encode(text).ids == want


# --- names that people type -------------------------------------------------------------------

def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch, pytestconfig):
    monkeypatch.setenv('HOME', str(tmp_path))
    save(noisy(), tmp_path / 'x')
    assert same(load('~/x'), noisy())
    with says(FileNotFoundError, str(tmp_path / 'no')): load('~/no')
    base = pytestconfig.rootpath / 'tests' / 'golden' / 'bert'
    with says(FileNotFoundError, str(tmp_path / 'no')): load(base, head='~/no')
    with says(FileNotFoundError, str(tmp_path / 'no')): pretrained('~/no')

def test_sources_that_do_not_exist(tmp_path, monkeypatch):
    save(noisy(), tmp_path / 'model')
    refused(tmp_path / 'modle', 'did you mean', 'model', error=FileNotFoundError)
    refused(tmp_path / 'nothing.ckpt', 'expected', error=FileNotFoundError)
    refused('nowhere', 'kuleshov-group/mdlm-owt', error=FileNotFoundError)
    refused('embeded', "'embedded'", error=FileNotFoundError)
    refused('/nope/x', 'expected', error=FileNotFoundError)
    monkeypatch.chdir(tmp_path)
    refused('model/best.ckpt', 'not found', error=FileNotFoundError)
    for source in (3, b'x', ['a']):
        with says(ValueError, f'source={type(source).__name__}: expected a folder, a file'):
            load(source)


def test_a_training_run_is_its_model(tmp_path):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'run.json').write_text('{}')
    refused(tmp_path / 'run', 'no model/config.json yet', 'the run ends', error=FileNotFoundError)
    save(noisy(), tmp_path / 'run' / 'model')
    assert same(load(tmp_path / 'run'), noisy())
    save(noisy(seed=5), tmp_path / 'run')                       # a model of its own comes first
    assert same(load(tmp_path / 'run'), noisy(seed=5))

def test_what_is_of_another_architecture_is_refused(tmp_path):
    save(noisy(), tmp_path / 'm')
    for source in (tmp_path / 'm', tmp_path / 'm' / 'model.safetensors'):
        for how in (dict(shift=True), dict(mask_id=3), dict(device_map='auto'), dict(head='.')):
            refused(source, *how, "MDLM's", **how)
    with says(FileNotFoundError, "head='nofolder': not found"): load(head='nofolder')
    with says(ValueError, "embedded: shift=False"): load(shift=False)
    (tmp_path / 'm' / 'config.json').unlink()
    os.mkfifo(tmp_path / 'm' / 'config.json')
    refused(tmp_path / 'm', 'config.json: a pipe', shift=False)
    (tmp_path / 'm' / 'config.json').unlink()
    for source in (None, tmp_path / 'm'):
        with says(ValueError, "revision='x'", 'Hub'): navira.load(source, revision='x')
