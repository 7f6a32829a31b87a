"""Bad input to models of the transformers library: one sentence each, which names the file or
the argument."""
import json, os, pickle, shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file

import navira
from navira.models.families import pretrained
from navira.models.transformers import wrap
from helpers.checkpoints import refused
from helpers.sample_api import says

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

@pytest.fixture
def copied(golden, tmp_path):
    def make(name='a2d-llama', drop=(), **fields):
        folder = shutil.copytree(golden / name, tmp_path / name)
        for pattern in drop:
            for f in folder.glob(pattern): f.unlink()
        config = json.loads((folder / 'config.json').read_text()) | fields
        config = {k: v for k, v in config.items() if v != 'absent'}
        (folder / 'config.json').write_text(json.dumps(config))
        return folder
    return make

# --- configurations ---------------------------------------------------------------------------

@pytest.mark.parametrize('name, fields, parts', [
    ('a2d-llama', dict(hidden_size=32), ['[288, 16] in the file', '[288, 32] by config.json']),
    ('a2d-llama', dict(hidden_size='big'), ["config.json: ", "'hidden_size'", "'big'"]),
    ('a2d-llama', dict(hidden_act='foo'), ["hidden_act='foo'"]),
    ('a2d-llama', dict(model_type='lada'),
     ["'lada' is not known", 'a2d-qwen3, dit, Dream', 'llada', 'mdlm', 'bert']),
    ('a2d-llama', dict(is_encoder_decoder=True), ['encoder-decoder']),
    *((name, {k: 10**9}, [f'config.json: {k}=1000000000', 'at most']) for name, k in (
        ('a2d-llama', 'num_hidden_layers'), ('llada', 'n_layers'), ('bert', 'num_labels'),
        ('a2d-llama', 'hidden_size'), ('a2d-llama', 'vocab_size'), ('bert', 'intermediate_size'),
        ('a2d-llama', 'num_key_value_heads'), ('llada', 'd_model'))),
    ('a2d-llama', dict(num_hidden_layers=3, layer_types=None), ['Missing', 'layers.2']),
    ('a2d-llama', dict(mask_token_id='<mask>'), ["mask_id='<mask>'"]),
    ('a2d-llama', dict(mask_token_id=4000), ['mask_id=4000', '287']),
    ('a2d-llama', dict(mask_token_id=280), ['280', 'tokenizer']),
    ('a2d-llama', dict(eos_token_id=[2, 'x']), ["'eos_token_id'", "'x'"]),
    ('llada', dict(alibi=True), ['alibi=True']), ('llada', dict(d_model='absent'), ['d_model']),
    ('gidd', dict(t_eps=.01), ['t_eps=0.01']),
    ('gidd', dict(timestep_cond_dim='absent'), ["no 'timestep_cond_dim'"]),
    ('bert', dict(architectures=['BertModel']), ['BertModel', 'BertForMaskedLM'])])
def test_a_configuration_that_cannot_be(copied, name, fields, parts):
    refused(copied(name, **fields), name, *parts)

# --- weights ----------------------------------------------------------------------------------

class Hostile:
    def __reduce__(self): return eval, ("open('ran', 'w').close()",)

@pytest.mark.parametrize('content', [pickle.dumps({'a': Hostile()}), b'junk' * 50])
@pytest.mark.filterwarnings('ignore:Detected pickle protocol')
def test_a_pickle_is_not_run(copied, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copied(drop=['*model*.safetensors'])
    (folder / 'pytorch_model.bin').write_bytes(content)
    refused(folder, 'a2d-llama')
    assert not (tmp_path / 'ran').exists()

@pytest.mark.parametrize('change, part', [
    (lambda w: w.index_fill(0, torch.tensor(0), torch.nan), 'holds NaN or infinity; expected'),
    (lambda w: None, 'Missing'), (lambda w: w.to(torch.int8), 'weights of type')])
def test_weights_that_cannot_be_are_named(copied, change, part):
    folder = copied()
    weights = load_file(folder / 'model.safetensors')
    key = max(k for k in weights if '.1.' in k and k.endswith('.weight'))
    changed = weights | {key: change(weights[key])}
    changed = {k: w for k, w in changed.items() if w is not None}
    save_file(changed, folder / 'model.safetensors', metadata=dict(format='pt'))
    refused(folder, *[key] * (part != 'weights of type'), part)

@pytest.mark.parametrize('key, fits', [('model.layers.1.self_attn.rotary_emb.inv_freq', True),
                                       ('model.blocks_upm.0.attn_norm.weight', False)])
def test_computed_buffers_of_old_files_are_ignored_and_a_second_stream_is_not(copied, key, fits):
    "RemeDi's config.json says `llada`, but its second stream changes the first."
    folder = copied()
    weights = load_file(folder / 'model.safetensors') | {key: torch.ones(2)}
    save_file(weights, folder / 'model.safetensors', metadata=dict(format='pt'))
    if fits: navira.load(folder)
    else: refused(folder, 'not the weights of this configuration', 'unexpected', 'blocks_upm')

# --- files ------------------------------------------------------------------------------------

@pytest.mark.parametrize('name, drop, file, parts', [
    ('bert', 'tokenizer.json', None, ['which token is the mask', 'mask_id=']),
    ('bert', 'model.safetensors', None, ['no file named model.safetensors']),
    ('bert', 'x', ('tokenizer.json', '{}'), ['tokenizer']),
    ('llada', 'x', ('model.safetensors.index.json', '{oops'), [])])
def test_files_that_are_missing_or_something_else(copied, name, drop, file, parts):
    folder = copied(name, [drop])
    if file: (folder / file[0]).write_text(file[1])
    refused(folder, *parts)

@pytest.mark.parametrize('name', ['bert', 'proseco'])
@pytest.mark.parametrize('file', ['config.json', 'model.safetensors', 'tokenizer.json',
                                  'quality.safetensors', 'generation_config.json'])
def test_nothing_waits_for_a_pipe(copied, name, file):
    if name == 'proseco' and file not in ('config.json', 'model.safetensors', 'tokenizer.json'):
        return
    folder = copied(name)
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    refused(folder, file, 'pipe')
    if name == 'bert':
        with says(ValueError, file, 'pipe'): pretrained(folder)
    (folder / file).unlink()
    (folder / file).symlink_to('/dev/zero')
    refused(folder, file, 'a device')

def test_a_head_that_is_a_pipe(golden, tmp_path):
    os.mkfifo(tmp_path / 'quality.safetensors')
    with says(ValueError, 'quality.safetensors: a pipe'):
        navira.load(golden / 'bert', head=tmp_path)

def test_one_file_of_a_folder(golden, tmp_path):
    for file in ('config.json', 'model-00001-of-00003.safetensors'):
        refused(golden / 'llada' / file, f"its folder, {str(golden / 'llada')!r}")
    shutil.copy(golden / 'a2d-llama' / 'model.safetensors', tmp_path / 'x.safetensors')
    refused(tmp_path / 'x.safetensors', 'no config.json beside it', error=FileNotFoundError)
    (tmp_path / 'm-q4.gguf').write_bytes(b'GGUF')
    refused(tmp_path / 'm-q4.gguf', 'm-q4.gguf: a GGUF', 'navira adapt')
    with says(FileNotFoundError, 'no config.json'): navira.load(tmp_path)

@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(['config.json', 'model.safetensors', 'tokenizer.json']),
       place=st.floats(0, 1), byte=st.integers(0, 255), cut=st.booleans())
@pytest.mark.filterwarnings('ignore')
def test_a_damaged_file_is_a_model_or_one_sentence(golden, tmp_path, name, place, byte, cut):
    folder = shutil.copytree(golden / 'bert', tmp_path / 'bert', dirs_exist_ok=True)
    data = bytearray((folder / name).read_bytes())
    at = min(int(place * len(data)), len(data) - 1)
    data[at:] = b'' if cut else bytes([byte]) + data[at + 1:]
    (folder / name).write_bytes(data)
    try: navira.load(folder)
    except ValueError as e: assert str(folder) in str(e) and '\n' not in str(e)

# --- arguments --------------------------------------------------------------------------------

@pytest.mark.parametrize('how', [dict(shift='yes'), dict(head=5), dict(mask_id='x')])
def test_no_argument_is_ignored(golden, how):
    (name, value), = how.items()
    refused(golden / 'llada', f'{name}={value!r}', **how)
    with says(KeyError, "'mask'", "'mask_id'"): navira.load(golden / 'llada', mask=5)
    with says(ValueError, 'device=', 'device_map='): navira.load(device='cpu', device_map='auto')
    with says(ValueError, 'foo'): navira.load(golden / 'llada', device_map='foo')

def test_wrap(golden):
    model = navira.load(golden / 'bert')
    with says(ValueError, "mask_id='<mask>'"): wrap(model.net, mask_id='<mask>')
    assert wrap(model.net, mask_id=3.).mask_id == 3
    model.text_tokenizer.add_tokens([f'new{i}' for i in range(9)])
    with says(ValueError, 'has a token', 'the network has 288'):
        wrap(model.net, model.text_tokenizer, mask_id=5)

# --- networks to start from -------------------------------------------------------------------

@pytest.mark.parametrize('text, error, why', [
    ('[]', ValueError, 'JSON object'), ('{"model_type": ', ValueError, 'not a readable JSON'),
    (None, FileNotFoundError, 'config.json'),
    ('{"model_type": "vit"}', ValueError, 'ViTConfig'),
    ('{"model_type": "t5", "is_encoder_decoder": true}', ValueError, 'T5Config')])
def test_a_network_to_start_from_that_is_none(tmp_path, text, error, why):
    if text is not None: (tmp_path / 'config.json').write_text(text)
    with says(error, str(tmp_path), why): pretrained(tmp_path)
    with says(FileNotFoundError, 'none: not found'): pretrained(tmp_path / 'none')
    with says(FileNotFoundError, 'none.gguf: not found'): pretrained(tmp_path / 'none.gguf')
