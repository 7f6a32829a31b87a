"""Bad input to models of the transformers library: one sentence each, which names the file or the argument."""
import json, os, pickle, shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import navira
from navira.evaluation.references import load_reference
from navira.models.adapter import save_adapter, with_adapter
from helpers.sample_api import says

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

@pytest.fixture
def copied(golden, tmp_path):
    def make(name='a2d-llama', drop=(), **settings):
        folder = shutil.copytree(golden / name, tmp_path / name)
        for pattern in drop:
            for f in folder.glob(pattern): f.unlink()
        (folder / 'config.json').write_text(json.dumps(json.loads((folder / 'config.json').read_text()) | settings))
        return folder
    return make

def refused(source, *parts, error=ValueError, **how):
    with pytest.raises(error) as e: navira.load(source, **how)
    text = str(e.value)
    assert type(e.value) is error and '\n' not in text and 'weights_only' not in text
    for part in parts: assert str(part) in text, text

# --- configurations -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('settings, parts', [
    (dict(hidden_size=32), ['[288, 16] in the file', '[288, 32] by config.json']),
    (dict(vocab_size=1000), ['lm_head.weight is [288, 16]', '[1000, 16]']),
    (dict(hidden_size='big'), ["config.json: hidden_size='big'"]), (dict(vocab_size=None), ['vocab_size=None']),
    (dict(num_attention_heads=3, head_dim=None), ['config.json', 'attention heads (3)']),
    (dict(dtype='float99'), ["config.json: dtype='float99'"]), (dict(hidden_act='foo'), ["hidden_act='foo'"]),
    (dict(rope_scaling=dict(type='foo')), ['rope_scaling', 'foo']), (dict(architectures='X'), ["architectures='X'"]),
    (dict(model_type=['llama']), ["model_type=['llama']"]), (dict(model_type='whisper'), ['whisper is an encoder-dec']),
    *((dict(mask_token_id=m), [f'mask_token_id={m!r}']) for m in ('<mask>', [5], 3.5, True, -1)),
    (dict(eos_token_id='x'), ["config.json: eos_token_id='x'"]), (dict(eos_token_id=[2, 'x']), ["eos_token_id='x'"])])
def test_a_configuration_that_cannot_be(copied, settings, parts):
    refused(copied(**settings), 'a2d-llama', *parts)

def test_a_configuration_of_llada_and_one_of_nothing(copied, tmp_path):
    refused(copied('llada', n_heads=0), 'config.json: n_heads=0')
    (tmp_path / 'config.json').write_text('{}')
    refused(tmp_path, 'config.json', 'model_type')

# --- weights --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('text, parts', [
    ('[]', ['JSON object']), ('{}', ['no weight_map']), ('{oops', ['not a readable JSON']),
    ('{"weight_map": {"a": "../../etc/passwd"}}', ["refused: '../../etc/passwd'"])])
def test_an_index_that_is_none(copied, text, parts):
    folder = copied('llada')
    (folder / 'model.safetensors.index.json').write_text(text)
    refused(folder, 'index.json', *parts)

class Hostile:
    def __reduce__(self): return eval, ("open('ran', 'w').close()",)

@pytest.mark.parametrize('content', [pickle.dumps({'a': Hostile()}), b'junk' * 50, b''])
@pytest.mark.filterwarnings('ignore:Detected pickle protocol')
def test_a_pickle_is_not_run(copied, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copied(drop=['*model*.safetensors'])
    (folder / 'pytorch_model.bin').write_bytes(content)
    refused(folder, 'a2d-llama')
    assert not (tmp_path / 'ran').exists()

@pytest.mark.parametrize('name', ['a2d-llama', 'bert', 'roberta', 'dream'])
@pytest.mark.parametrize('value, word', [(torch.nan, 'NaN'), (-torch.inf, 'infinity')])
def test_weights_that_are_not_finite_are_named(copied, name, value, word):
    folder = copied(name)
    weights = load_file(folder / 'model.safetensors')
    weights[max(weights)].view(-1)[-1] = value
    save_file(weights, folder / 'model.safetensors', metadata=dict(format='pt'))
    refused(folder, name, f'holds {word}; expected finite weights')

@pytest.mark.parametrize('file', ['adapter_model.safetensors', 'quality.safetensors'])
def test_an_adapter_and_a_head_that_are_not_finite_are_named(copied, tmp_path, file):
    folder, path = copied(), tmp_path / 'head' / file
    save_adapter(with_adapter(navira.load(folder), rank=2), tmp_path / 'head')
    with safe_open(path, 'pt') as f: weights, about = {k: f.get_tensor(k) for k in f.keys()}, f.metadata()
    for k, w in weights.items():
        if not k.startswith('base.'): w += torch.nan
    save_file(weights, path, metadata=about)
    refused(folder, 'head', 'holds NaN; expected finite weights', head=tmp_path / 'head')

@pytest.mark.parametrize('settings', [dict(num_hidden_layers=10**5), dict(num_labels=10**9), dict(vocab_size=2**40)])
def test_a_size_beyond_all_there_is(copied, settings):
    (name, value), = settings.items()
    folder = copied(**settings)
    refused(folder, f'config.json: {name}={value}', 'at most')
    with pytest.raises(ValueError, match='at most'): load_reference(str(folder))

@pytest.mark.parametrize('name', ['model.safetensors', 'tokenizer.json'])
def test_a_pipe_among_the_files_is_not_waited_for(copied, name):
    folder = copied(drop=[name])
    os.mkfifo(folder / name)
    refused(folder, f'{name}: a pipe or a device; expected a file')
    with pytest.raises(ValueError, match='a pipe or a device'): load_reference(str(folder))

def test_whole_numbers_are_no_weights(copied):
    folder = copied()
    weights = {k: v.to(torch.int8) for k, v in load_file(folder / 'model.safetensors').items()}
    save_file(weights, folder / 'model.safetensors', metadata=dict(format='pt'))
    for dtype in (None, 'float32'): refused(folder, 'lm_head.weight is of type I8', dtype=dtype)

def test_files_that_are_not_there(copied, tmp_path):
    refused(copied('bert', drop=['tokenizer.json']), 'bert', 'tokenizer files are missing', 'mask_id=')
    for name, drop in (('a2d-llama', ['*model*.safetensors']), ('roberta', ['*'])):
        folder = copied(name)
        for pattern in drop:
            for f in folder.glob(pattern): f.unlink()
        (folder / 'model-q4.gguf').write_bytes(b'GGUF')
        refused(folder, 'model-q4.gguf: a GGUF', 'navira adapt')
    (tmp_path / 'empty').mkdir()
    refused(tmp_path / 'empty', 'config.json', 'LLaDA', error=FileNotFoundError)

# --- sources --------------------------------------------------------------------------------------------------------

def test_one_file_of_a_folder(golden, tmp_path):
    for file in ('config.json', 'model-00001-of-00003.safetensors'):
        refused(golden / 'llada' / file, file, f"its folder, {str(golden / 'llada')!r}")
    shutil.copy(golden / 'a2d-llama' / 'model.safetensors', tmp_path / 'x.safetensors')
    refused(tmp_path / 'x.safetensors', 'x.safetensors', 'give the folder')

def test_names(monkeypatch):
    import huggingface_hub
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    refused('GSAI-ML/LLaDA-8B-Base', 'HF_HUB_OFFLINE', '`hf download GSAI-ML/LLaDA-8B-Base`', error=FileNotFoundError)
    refused('https://huggingface.co/GSAI-ML/LLaDA-8B-Base', "name, 'GSAI-ML/LLaDA-8B-Base'", error=FileNotFoundError)
    with pytest.raises(FileNotFoundError) as e: navira.load('/nope/x')
    assert 'did you mean' not in str(e.value)

@pytest.mark.parametrize('how', [
    dict(length=10), dict(tokenizer='foo'), dict(shift='yes'), dict(shift='False'), dict(head=5),
    dict(device_map='foo'), dict(mask_id='x'), dict(mask_id=3.5), dict(mask_id=True)])
def test_no_argument_is_ignored(golden, how):
    (name, value), = how.items()
    refused(golden / 'llada', f'{name}={value!r}', **how)

@pytest.mark.parametrize('how, part', [
    (dict(mask_id='<mask>'), "mask_id='<mask>'"), (dict(mask_id=5, tokenizer='gpt2'), "tokenizer='gpt2'"),
    (dict(mask_id=5, suppress=(99999,)), 'suppress=99999'), (dict(mask_id=5, shift='no'), "shift='no'")])
def test_wrap(golden, how, part):
    with says(ValueError, part): navira.wrap(navira.load(golden / 'bert').net, **how)

def test_wrap_with_more_tokens_than_the_network_has(golden):
    tok = navira.load(golden / 'bert').text_tokenizer
    tok.add_tokens([f'new{i}' for i in range(9)])
    with says(ValueError, 'has a token', 'the network has 288'):
        navira.wrap(navira.load(golden / 'bert').net, tok, mask_id=5)
    assert navira.wrap(navira.load(golden / 'bert').net, mask_id=3.).mask_id == 3

# --- save, heads ----------------------------------------------------------------------------------------------------

def logits(model):
    x = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    x[:, 3:6] = model.mask_id
    with torch.inference_mode():
        f = model(x)
        return f.logits(x > 0), None if model.quality is None else f.quality()

def trained(golden, name='bert', rank=2):
    torch.manual_seed(0)
    model = with_adapter(navira.load(golden / name), rank)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n in model.trains: p.normal_(std=.1)
    return model.eval()

@pytest.mark.parametrize('name', ['llada', 'bert', 'diffugpt'])
def test_saved_and_loaded_it_is_the_same(golden, tmp_path, name):
    model = navira.load(golden / name)
    navira.save(model, tmp_path / 'a')
    again = navira.load(tmp_path / 'a')
    assert torch.equal(logits(again)[0], logits(model)[0]) and again.tokenizer is not None
    navira.save(model, tmp_path / 'half', torch.bfloat16)
    assert navira.load(tmp_path / 'half').net.dtype == torch.bfloat16 and model.net.dtype == torch.float32
    save_adapter(trained(golden, name), tmp_path / 'head')
    model = navira.load(golden / name, head=tmp_path / 'head')
    navira.save(model, tmp_path / 'a')                                                  # over the first
    for a, b in zip(logits(navira.load(tmp_path / 'a')), logits(model), strict=True): assert torch.equal(a, b)
    with says(ValueError, 'adapter is still in training'): navira.save(trained(golden, name), tmp_path / 'b')
    with says(ValueError, 'model: int'): navira.save(5, tmp_path / 'b')

def test_a_run_is_a_head_and_no_model(golden, tmp_path):
    run = tmp_path / 'run'
    run.mkdir(); (run / 'run.json').write_text(json.dumps(dict(model=str(golden / 'bert'))))
    refused(golden / 'bert', 'quality.safetensors yet', error=FileNotFoundError, head=run)
    save_adapter(trained(golden), run / 'model')
    a, b = (logits(navira.load(golden / 'bert', head=f)) for f in (run, run / 'model'))
    assert torch.equal(a[1], b[1])
    for source in (run, run / 'model'):
        refused(source, 'head', f"navira.load({str(golden / 'bert')!r}, head=", '--head')

@pytest.mark.parametrize('damage, error, part', [
    (lambda f: (f / 'adapter_config.json').write_text('[]'), ValueError, 'adapter_config.json'),
    (lambda f: (f / 'adapter_config.json').write_text('{}'), ValueError, 'adapter_config.json: r=None'),
    (lambda f: (f / 'adapter_config.json').unlink(), FileNotFoundError, 'adapter_config.json'),
    (lambda f: (f / 'adapter_model.safetensors').unlink(), FileNotFoundError, 'adapter_model.safetensors'),
    (lambda f: (f / 'adapter_model.safetensors').write_bytes(b'x'), ValueError, 'not an adapter'),
    (lambda f: changed(f / 'adapter_config.json', r=8), ValueError, 'r=8: expected 2'),
    (lambda f: changed(f / 'adapter_config.json', target_modules=['nothing']), ValueError, 'not an adapter'),
    (lambda f: save_file({'a.b': torch.ones(2)}, f / 'adapter_model.safetensors'), ValueError, 'not an adapter')])
def test_a_damaged_adapter(golden, tmp_path, damage, error, part):
    save_adapter(trained(golden), tmp_path / 'head')
    damage(tmp_path / 'head')
    refused(golden / 'bert', tmp_path / 'head', part, error=error, head=tmp_path / 'head')

def changed(file, **settings): file.write_text(json.dumps(json.loads(file.read_text()) | settings))
