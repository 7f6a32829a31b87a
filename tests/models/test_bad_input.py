"""Bad input to models of the transformers library: one sentence each, which names the file or
the argument."""
import json, os, pickle, shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file

import navira
from navira.evaluation.references import load_reference
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

@pytest.mark.parametrize(
    'fields, parts',
    [
        (dict(hidden_size=32), ['[288, 16] in the file', '[288, 32] by config.json']),
        (dict(hidden_size='big'), ["config.json: hidden_size='big'"]),
        (dict(hidden_act='foo'), ["hidden_act='foo'"]),
        (dict(model_type='whisper'), ['whisper is an encoder-dec']),
        (
            dict(model_type='lada'),
            ["'lada' is not known", 'a2d-qwen3, dit, Dream', 'llada', 'mdlm', 'bert'],
        ),
        (dict(is_encoder_decoder=True), ['encoder-decoder']),
        (dict(num_hidden_layers=10**5), ['num_hidden_layers=', 'at most']),
        (dict(vocab_size=2**40), ['at most']),
        *(
            (dict(mask_token_id=m), [f'mask_token_id={m!r}'])
            for m in ('<mask>', True)
        ),
        (dict(eos_token_id=[2, 'x']), ["eos_token_id='x'"]),
        (dict(mask_token_id=4000), ['mask_id=4000', '287']),
        (dict(mask_token_id=280), ['280', 'tokenizer']),
        (dict(num_hidden_layers=3, layer_types=None), ['Missing', 'layers.2']),
    ],
)
def test_a_configuration_that_cannot_be(copied, fields, parts):
    refused(copied(**fields), 'a2d-llama', *parts)

@pytest.mark.parametrize(
    'fields, parts',
    [
        (dict(alibi=True), ['alibi=True']),
        (dict(d_model='absent'), ['d_model']),
    ],
)
def test_a_configuration_of_llada_that_cannot_be(copied, fields, parts):
    refused(copied('llada', **fields), 'llada', *parts)

@pytest.mark.parametrize('fields, part', [
    (dict(t_eps=.01), 't_eps=0.01'), (dict(timestep_cond_dim='absent'), 'no timestep_cond_dim')])
def test_a_configuration_of_gidd_that_cannot_be(copied, fields, part):
    refused(copied('gidd', **fields), part)

def test_a_headless_bert_and_a_configuration_of_nothing(copied, tmp_path):
    refused(copied('bert', architectures=['BertModel']), 'BertModel', 'BertForMaskedLM')
    (tmp_path / 'config.json').write_text('{}')
    refused(tmp_path, 'config.json', 'model_type')

# --- weights ----------------------------------------------------------------------------------

@pytest.mark.parametrize('text, part', [
    ('[]', 'JSON object'), ('{}', 'no weight_map'), ('{oops', 'not a readable JSON'),
    ('{"weight_map": {"a": "../../etc/passwd"}}', "refused: '../../etc/passwd'")])
def test_an_index_that_is_none(copied, text, part):
    folder = copied('llada')
    (folder / 'model.safetensors.index.json').write_text(text)
    refused(folder, 'index.json', part)

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

@pytest.mark.parametrize('change, part', [
    (lambda w: w.index_fill(0, torch.tensor(0), torch.nan), 'holds NaN; expected finite weights'),
    (lambda w: w.index_fill(0, torch.tensor(0), -torch.inf), 'holds infinity; expected finite'),
    (lambda w: w.to(torch.int8), 'is of type I8'), (lambda w: None, 'Missing')])
def test_weights_that_cannot_be_are_named(copied, change, part):
    folder = copied()
    weights = load_file(folder / 'model.safetensors')
    key = max(k for k in weights if '.1.' in k and k.endswith('.weight'))
    changed = weights | {key: change(weights[key])}
    changed = {k: w for k, w in changed.items() if w is not None}
    save_file(changed, folder / 'model.safetensors', metadata=dict(format='pt'))
    refused(folder, key, part)

@pytest.mark.parametrize(
    'key, fits',
    [
        ('model.layers.1.self_attn.rotary_emb.inv_freq', True),
        ('model.blocks_upm.0.attn_norm.weight', False),
    ],
)
def test_computed_buffers_of_old_files_are_ignored_and_a_second_stream_is_not(copied, key, fits):
    "RemeDi's config.json says `llada`, but its second stream changes the first."
    folder = copied()
    weights = load_file(folder / 'model.safetensors') | {key: torch.ones(2)}
    save_file(weights, folder / 'model.safetensors', metadata=dict(format='pt'))
    if fits: navira.load(folder)
    else: refused(folder, 'not the weights of this configuration', 'unexpected', 'blocks_upm')

# --- files ------------------------------------------------------------------------------------

@pytest.mark.parametrize('name', ['model.safetensors', 'tokenizer.json'])
def test_a_pipe_among_the_files_is_not_waited_for(copied, name):
    folder = copied(drop=[name])
    os.mkfifo(folder / name)
    refused(folder, f'{name}: a pipe or a device; expected a file')
    with says(ValueError, 'a pipe or a device'): load_reference(str(folder))

@pytest.mark.parametrize(
    'name, drop, file, parts, error',
    [
        ('bert', 'tokenizer.json', None, ['which token is the mask', 'mask_id='], ValueError),
        ('bert', 'model.safetensors', None, ['no weights', 'safetensors'], FileNotFoundError),
        (
            'bert',
            'tokenizer.json',
            ('tokenizer.json', b'{"no": "tokenizer"}'),
            ['tokenizer'],
            ValueError,
        ),
        (
            'a2d-llama',
            '*model*.safetensors',
            ('m-q4.gguf', b'GGUF'),
            ['m-q4.gguf: a GGUF', 'navira adapt'],
            ValueError,
        ),
        ('roberta', '*', ('m-q4.gguf', b'GGUF'), ['m-q4.gguf: a GGUF', 'safetensors'], ValueError),
        ('bert', '*', None, ['config.json', 'LLaDA'], FileNotFoundError),
    ],
)
def test_files_that_are_missing_or_something_else(copied, name, drop, file, parts, error):
    folder = copied(name)
    for f in folder.glob(drop): f.unlink()
    if file: (folder / file[0]).write_bytes(file[1])
    refused(folder, *parts, error=error)

def test_one_file_of_a_folder(golden, tmp_path):
    for file in ('config.json', 'model-00001-of-00003.safetensors'):
        refused(golden / 'llada' / file, f"its folder, {str(golden / 'llada')!r}")
    shutil.copy(golden / 'a2d-llama' / 'model.safetensors', tmp_path / 'x.safetensors')
    refused(tmp_path / 'x.safetensors', 'give the folder')

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

@pytest.mark.parametrize('how', [
    dict(length=10), dict(tokenizer='foo'), dict(shift='yes'), dict(head=5),
    dict(device_map='foo'), dict(mask_id='x')])
def test_no_argument_is_ignored(golden, how):
    (name, value), = how.items()
    refused(golden / 'llada', f'{name}={value!r}', **how)
    with says(ValueError, 'device=', 'device_map='): navira.load(device='cpu', device_map='auto')

@pytest.mark.parametrize(
    'how, part',
    [
        (dict(mask_id='<mask>'), "mask_id='<mask>'"),
        (dict(mask_id=5, suppress=(99999,)), 'suppress=99999'),
    ],
)
def test_wrap(golden, how, part):
    net = navira.load(golden / 'bert').net
    with says(ValueError, part): wrap(net, **how)
    assert wrap(net, mask_id=3.).mask_id == 3

def test_wrap_with_more_tokens_than_the_network_has(golden):
    model = navira.load(golden / 'bert')
    model.text_tokenizer.add_tokens([f'new{i}' for i in range(9)])
    with says(ValueError, 'has a token', 'the network has 288'):
        wrap(model.net, model.text_tokenizer, mask_id=5)


# --- networks to start from -------------------------------------------------------------------

@pytest.mark.parametrize('text, error, why', [
    ('[]', ValueError, 'JSON object'), ('{"model_type": ', ValueError, 'not a readable JSON'),
    (None, FileNotFoundError, 'config.json'),
    ('{"model_type": "t5", "is_encoder_decoder": true}', ValueError, 'is an encoder-decoder'),
    ('{"model_type": "vit"}', ValueError, "model_type 'vit' is no encoder or decoder")])
def test_a_network_to_start_from_that_is_none(tmp_path, text, error, why):
    if text is not None: (tmp_path / 'config.json').write_text(text)
    with says(error, str(tmp_path), why): pretrained(tmp_path)
    with says(FileNotFoundError, 'none: not found'): pretrained(tmp_path / 'none')
    with says(FileNotFoundError, 'none.gguf: not found'): pretrained(tmp_path / 'none.gguf')
