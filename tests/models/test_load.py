"""One function, `load`: folders of MDLM's layout, whole, damaged, foreign and malicious; the Hub;
names that people type; precision, products and devices."""
import copy, json, math, os, pickle, shutil, subprocess, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from navira.models.checkpoints import on_disk
from navira.models.families import pretrained
from navira.models.load import HAS_ONEDNN, load, save, set_products
from navira.sampling import sample
from helpers.checkpoints import (  # noqa: F401
    convert, HEAD, TINY, hub_folder, lightning, no_grad, noisy, refused, same, small_tokenizer,
    words)
from helpers.sample_api import says

@pytest.fixture
def folder(tmp_path):
    "A model with a head and a tokenizer"
    model = noisy(HEAD)
    model.tokenizer = small_tokenizer()
    save(model, tmp_path / 'm')
    return tmp_path / 'm'

def changed(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return file.parent

# --- whole folders ----------------------------------------------------------------------------

@pytest.mark.parametrize('config', [TINY, HEAD])
@pytest.mark.parametrize('kept', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('dtype', [None, 'bf16', 'half'])
def test_saved_and_loaded_it_is_the_same(tmp_path, config, kept, dtype):
    model = noisy(config).to(kept)
    model.tokenizer = small_tokenizer()
    save(model, tmp_path / 'a' / 'b')
    again = load(str(tmp_path / 'a' / 'b'), dtype=dtype)
    assert same(again, model.to(next(again.parameters()).dtype))
    assert again.config == config and not again.training
    assert again.tokenizer.encode('c d <|mask|>').ids == [2, 3, 10]

def test_a_save_that_fails_leaves_the_old_model_whole(folder, monkeypatch):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    monkeypatch.setattr('navira.models.checkpoints.save_file', None)
    with pytest.raises(TypeError): save(noisy(seed=2), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before

def test_a_pickle_of_weights(tmp_path):
    folder = hub_folder(tmp_path / 'hf', noisy(TINY))
    (folder / 'model.safetensors').unlink()
    state = {k.removeprefix('backbone.'): w for k, w in on_disk(noisy(TINY)).items()}
    torch.save(state, folder / 'pytorch_model.bin')
    assert same(load(folder), noisy(TINY))

def test_a_training_run_is_its_model(tmp_path):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'run.json').write_text('{}')
    refused(tmp_path / 'run', 'no model/config.json yet', 'the run ends', error=FileNotFoundError)
    save(noisy(), tmp_path / 'run' / 'model')
    assert same(load(tmp_path / 'run'), noisy())
    save(noisy(seed=5), tmp_path / 'run')                       # a model of its own comes first
    assert same(load(tmp_path / 'run'), noisy(seed=5))

# --- configurations, weights and tokenizers that do not fit -------------------------------------

SIZES = 'vocab_size', 'hidden_dim', 'cond_dim', 'n_blocks', 'n_heads', 'model_length'

@pytest.mark.parametrize('fields, parts', [
    *(({k: 10**12}, [f'config.json: {k}={10**12}: expected']) for k in SIZES),
    (dict(n_heads=5), ['hidden_dim=16']),
    (dict(boxes=[3, 3]), ['model_length=12: expected 81']),
    (dict(n_blocks=3), ['Missing key(s) in state_dict: "backbone.blocks.2']),
    (dict(quality_blocks=None), ['Unexpected key(s) in state_dict: "quality.']),
    (dict(model_type='mamba'), ["'mamba'", 'mdlm']),
    (dict(time_conditioning=True), ['time_conditioning=True'])])
def test_a_configuration_that_does_not_fit(folder, fields, parts):
    refused(changed(folder / 'config.json', **fields), *parts)

@pytest.mark.parametrize('change, part', [
    ({'adapter.weight': torch.ones(1)}, 'Unexpected key(s) in state_dict: "backbone.adapter'),
    ({'backbone.blocks.1.norm2.weight': None}, 'Missing key(s) in state_dict: "backbone.blocks.1.'),
    ({'backbone.blocks.0.attn_out.weight': torch.ones(16, 8)}, 'torch.Size([16, 8])'),
    ({'quality.block.norm1.weight': torch.full((16,), math.nan)},
     'quality.block.norm1.weight holds NaN or infinity; expected finite'),
    ({'quality.block.norm1.weight': torch.full((16,), 1e6)}, 'too large for torch.float16')])
def test_weights_that_cannot_be_are_named(folder, change, part):
    state = {k: w for k, w in (on_disk(noisy(HEAD)) | change).items() if w is not None}
    save_file(state, folder / 'model.safetensors')
    refused(folder, part, dtype='half')

@pytest.mark.parametrize('tok, part', [
    (words(*'abcdefg', '<|mask|>', *'hij'),
     "token 10 is 'j'; the model has 11 tokens, and its mask is token 10"),
    (words(*'abcdefghi', **{'<|mask|>': 10, 'z': 99}), 'its last token is 99')])
def test_a_tokenizer_of_another_model(folder, tok, part):
    "The blank would stay in the text, as letters."
    tok.save(str(folder / 'tokenizer.json'))
    refused(folder, 'tokenizer.json: ', part)

def test_a_tokenizer_neither_cuts_nor_fills_up_a_prompt(tmp_path):
    save(load(), tmp_path)
    changed(tmp_path / 'tokenizer.json', truncation=dict(
        direction='Right', max_length=4, strategy='LongestFirst', stride=0), padding=dict(
        strategy=dict(Fixed=40), direction='Right', pad_to_multiple_of=None, pad_id=0,
        pad_type_id=0, pad_token='a'))
    text = 'It was a dark and stormy night'
    assert load(tmp_path).tokenizer.encode(text).ids == load().tokenizer.encode(text).ids

# --- malice and damage --------------------------------------------------------------------------

class Calls:
    "Pickles as `function(*args)`."
    def __init__(self, function, *args): self.how = function, args
    def __reduce__(self): return self.how

def attacks(marker):
    touch, code = f'touch {marker}', f"open({str(marker)!r}, 'w').write('x')"
    return [Calls(os.system, touch), Calls(eval, code), Calls(getattr, Path('x'), 'unlink'),
            Calls(pickle.loads, pickle.dumps(Calls(os.system, touch)))]

@pytest.mark.parametrize('place', ['state_dict', 'average', 'configuration'])
def test_of_a_malicious_checkpoint_nothing_runs(tmp_path, place):
    "It is refused, or what it wanted to call is a stand-in that does nothing."
    marker, params = tmp_path / 'owned', [*noisy(TINY).parameters()]
    folder = hub_folder(tmp_path / 'hf', noisy(TINY))
    (folder / 'model.safetensors').unlink()
    for bad in attacks(marker):
        state = on_disk(noisy(TINY)) | ({'x': bad} if place == 'state_dict' else {})
        average = [*params, bad] if place == 'average' else params
        config = {'config': [{'b': bad}]} if place == 'configuration' else {}
        both = dict(state_dict=state, ema=dict(shadow_params=average), **config)
        for file, content in ((folder / 'pytorch_model.bin', state | both),
                              (tmp_path / 'evil.ckpt', both)):
            torch.save(content, file)
            try: assert same(load(folder) if file.suffix == '.bin' else convert(file), noisy(TINY))
            except ValueError as e: assert str(file.parent) in str(e)
        assert not marker.exists()

@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(['proseco', 'bert']), pickled=st.booleans(), place=st.floats(0, 1),
       name=st.sampled_from(['config.json', 'tokenizer.json', 'weights']),
       byte=st.integers(0, 255), cut=st.booleans())
@pytest.mark.filterwarnings('ignore')
def test_a_damaged_file_is_a_model_or_one_sentence(tmp_path, golden, kind, pickled, name, place,
                                                   byte, cut):
    for old in [*tmp_path.glob('*')]: old.unlink()
    shutil.copytree(golden / kind, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / 'model.safetensors'
    if pickled:
        state = load_file(weights)
        weights.unlink()
        weights = tmp_path / 'pytorch_model.bin'
        torch.save(state, weights, _use_new_zipfile_serialization=byte % 2 == 0)
    file = weights if name == 'weights' else tmp_path / name
    data = bytearray(file.read_bytes())
    at = min(int(place * len(data)), len(data) - 1)
    data[at:] = b'' if cut else bytes([byte]) + data[at + 1:]
    file.write_bytes(data)
    try: load(tmp_path)
    except ValueError as e:
        assert str(tmp_path) in str(e) and '\n' not in str(e) and len(str(e)) < 2000

# --- Lightning's checkpoints, converted ---------------------------------------------------------

def test_a_file_of_mdlms_training_is_converted_without_its_packages(tmp_path):
    "It holds objects of OmegaConf 2.3, tokenizers, optimizers and numpy."
    real = Path(__file__).parent / 'lightning.ckpt'
    refused(real, 'one file', 'convert_ckpt')
    run = ('import sys, runpy; runpy.run_path("tools/convert_ckpt.py", run_name="__main__"); '
           'sys.exit(bool({"omegaconf", "transformers"} & {*sys.modules}))')
    code = subprocess.run([sys.executable, '-c', run, real, tmp_path / 'm', '12'],
                          cwd=Path(__file__).parents[2]).returncode
    assert code == 0 and same(load(tmp_path / 'm'), noisy(TINY, 2))
    assert load(tmp_path / 'm').length == 12

def test_the_average_of_backbone_and_head_in_either_order(tmp_path):
    raw, average = noisy(HEAD, 1), noisy(HEAD, 2)
    backbone, head = list(average.backbone.parameters()), list(average.quality.parameters())
    for listed in (backbone + head, head + backbone):
        assert same(convert(lightning(tmp_path / 'a.ckpt', raw, listed)), average)
    model = convert(lightning(tmp_path / 'a.ckpt', raw, backbone))
    assert same(model.backbone, average.backbone) and same(model.quality, raw.quality)
    with pytest.raises(ValueError, match='in the order and the shapes of the backbone'):
        convert(lightning(tmp_path / 'a.ckpt', raw, backbone[::-1]))

# --- the Hub ------------------------------------------------------------------------------------

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

def test_of_a_repository_the_configuration_comes_first_and_no_code(tmp_path, hub, golden):
    "MDLM's have no tokenizer; theirs is GPT-2's."
    folders, asked = hub
    mdlm, gpt2 = noisy(replace(TINY, vocab_size=50258, mask_id=50257)), tmp_path / 'gpt2'
    folders |= {'kuleshov-group/mdlm-owt': hub_folder(tmp_path / 'hf', mdlm),
                'openai-community/gpt2': gpt2, 'GSAI-ML/LLaDA-8B-Base': golden / 'llada'}
    gpt2.mkdir()
    vocab = {f'w{i}': i for i in range(50257)}
    Tokenizer(models.WordLevel(vocab, unk_token='w0')).save(str(gpt2 / 'tokenizer.json'))
    assert load('kuleshov-group/mdlm-owt').tokenizer.token_to_id('<|mask|>') == 50257
    assert load('GSAI-ML/LLaDA-8B-Base', revision='abc').mask_id == 277
    assert asked[0][2] == asked[-2][2] == ('config.json',)
    assert [a[:2] for a in asked[-2:]] == [('GSAI-ML/LLaDA-8B-Base', 'abc')] * 2
    assert not any(p.endswith(('.py', '.pt', '.pkl')) for a in asked for p in a[2])
    assert not any(p.endswith('.bin') for p in asked[-1][2])

def test_what_the_hub_does_not_have(tmp_path, hub):
    folders, asked = hub
    folders['state-spaces/mamba'] = hub_folder(tmp_path / 'hf', noisy(TINY), model_type='mamba')
    with says(ValueError, "'mamba'", 'llada', 'mdlm'): load('state-spaces/mamba')
    assert len(asked) == 1                                      # not its weights
    refused('kuleshov-group/mdlm-own', 'ConnectionError', 'HF_HUB_OFFLINE',
            '`hf download kuleshov-group/mdlm-own`', 'navira.load()', error=FileNotFoundError)

# --- what people type ---------------------------------------------------------------------------

def test_a_tilde_is_the_home_folder(folder, monkeypatch, golden):
    monkeypatch.setenv('HOME', str(folder.parent))
    assert load('~/m').tokenizer
    for refusing in (lambda: load('~/no'), lambda: pretrained('~/no'),
                     lambda: load(golden / 'bert', head='~/no')):
        with says(FileNotFoundError, folder.parent / 'no'): refusing()

@pytest.mark.parametrize('source, part, error', [
    ('nowhere', 'mdlm-owt', FileNotFoundError), ('/nope/x', 'expected', FileNotFoundError),
    ('m/best.ckpt', 'not found', FileNotFoundError), ('.', 'no config.json', FileNotFoundError),
    ('m/model.safetensors', 'one file; expected the folder', ValueError),
    (3, 'source=3: expected a folder', ValueError), (b'x', "b'x'", ValueError)])
def test_sources_that_are_none(folder, monkeypatch, source, part, error):
    monkeypatch.chdir(folder.parent)
    with says(error, part): load(source)

def test_no_argument_is_ignored(folder):
    for name, value in dict(shift=False, mask_id=3, device_map='auto', block=4).items():
        with says(ValueError, f"{name}='{value}'", "MDLM's architecture"):
            load(folder, **{name: value})
    with says(ValueError, "revision='x'", 'Hub'): load(folder, revision='x')
    with says(FileNotFoundError, "head='nofolder': not found"): load(head='nofolder')
    with says(KeyError, "'mask'", "'mask_id'"): load(mask=5)
    with says(ValueError, 'device=', 'device_map='): load(device='cpu', device_map='auto')
    for name in (1.5, torch.device('cuda', 99), 'mps'):
        with says(ValueError, f'device={str(name)!r}', "expected 'auto', 'cpu'"): load(device=name)

# --- products -----------------------------------------------------------------------------------

@pytest.mark.skipif(not HAS_ONEDNN, reason='no oneDNN, or no x86')
@pytest.mark.parametrize('kind', ['proseco', 'llada', 'bert', 'diffugpt'])
@pytest.mark.parametrize('how', ['float32', 'gradients', 'float64', 'bfloat16', 'autocast'])
def test_products_give_the_same_numbers_from_the_same_parameters(golden, monkeypatch, kind, how):
    "What oneDNN cannot do, PyTorch does; heads run in float32 at least."
    seen, real = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(torch.ops.mkldnn, '_linear_pointwise',
                        lambda *args: seen.append(args[3]) or real(*args), raising=False)
    x = torch.randint(5, 10, (2, 12), generator=torch.Generator().manual_seed(0))
    def logits(model):
        with torch.autocast('cpu', torch.bfloat16, enabled=how == 'autocast'), \
                torch.set_grad_enabled(how == 'gradients'):
            return model(x).logits(x > 0)
    model = set_products(load(golden / kind), 'default')
    model.to(getattr(torch, dict(gradients='float32', autocast='float32').get(how, how)))
    want = logits(model)
    assert not seen
    copied = copy.deepcopy(set_products(model, 'onednn'))
    set_products(model, 'default')
    torch.testing.assert_close(logits(copied), want)
    fused = kind == 'proseco' and torch.backends.cpu.get_cpu_capability() != 'AVX2'
    if how == 'float32': assert seen and ('gelu' in seen or not fused)
    else: assert len(seen) <= 2 * (how in ('bfloat16', 'autocast'))

# --- what `from_pretrained` takes ---------------------------------------------------------------

def test_settings_of_the_transformers_library_go_through(golden):
    "Attention by other code, and memory of devices"
    x = torch.tensor([[5, 6, 7]])
    plain, eager = load(golden/'a2d-llama'), load(golden/'a2d-llama', attn_implementation='eager')
    assert eager.config._attn_implementation == 'eager' != plain.config._attn_implementation
    assert torch.allclose(plain.hidden(x), eager.hidden(x), atol=1e-4)
    spread = load(golden/'a2d-llama', device_map='auto', max_memory={'cpu': '1GB'})
    assert torch.allclose(plain.hidden(x), spread.hidden(x), atol=1e-4)
    with says(ValueError, "max_memory={'cpu': 1}", "device_map='auto'"):
        load(golden/'a2d-llama', max_memory={'cpu': 1})
    with says(ValueError, 'attn_implementation=', 'not for'): load(attn_implementation='eager')

def test_weights_of_more_than_twice_the_memory_are_not_read(golden, monkeypatch):
    free = SimpleNamespace(available=1000)
    monkeypatch.setattr('navira.models.load.psutil.virtual_memory', lambda: free)
    monkeypatch.setattr('navira.models.families.read_net', None)
    with says(ValueError, 'a2d-llama', 'GB', '1e-06 GB', 'device_map='): load(golden/'a2d-llama')
    with says(ValueError, 'GB of memory are free on cpu'): load()

def in_eight_bits(golden, copied, kind):
    "Packed as it is read, by another package, or in the file, by the transformers library itself"
    if kind == 'quanto':
        pytest.importorskip('optimum.quanto')
        how = transformers.QuantoConfig(weights='int8')
        return load(golden/'a2d-llama', quantization_config=how)
    pytest.importorskip('transformers.integrations.gemma_quant')
    packed = {}
    for name, w in load_file(golden/'a2d-llama'/'model.safetensors').items():
        if not name.endswith('_proj.weight'): continue
        layer, scale = name.removesuffix('weight'), w.abs().amax(1, keepdim=True) / 127
        packed |= {f'{layer}{k}put_activation_scale': torch.tensor(0.) for k in ('in', 'out')}
        packed |= {f'{layer}weight_scale': scale, name: (w / scale).round().to(torch.int8)}
    return load(copied('a2d-llama', packed, quantization_config=dict(
        quant_method='gemma', num_bits=8, modules_to_not_convert=['lm_head'])))

@pytest.mark.parametrize('kind', ['gemma', 'quanto'])
def test_in_eight_bits_it_writes_with_a_cache_and_a_second_pass(golden, copied, kind):
    plain, packed = load(golden/'a2d-llama'), in_eight_bits(golden, copied, kind)
    x = torch.tensor([[5, 6, 7]])
    a, b = (m.hidden(x).detach() for m in (plain, packed))
    assert 0 < (a - b).abs().max() < .1 * a.abs().max()
    packed.quality = lambda h: h[..., 0]
    how = dict(budget=8, prompt=[5, 6], max_new_tokens=8, seed=1)
    for name in 'remdm-conf', 'navira-det':
        once = sample(packed, name, **how)
        again = sample(packed, name, **how, cache='changed', refresh=1)
        assert torch.equal(once.tokens, again.tokens)
    out = sample(packed, 'navira-det-changed', **how, cache='changed')
    assert (out.tokens != packed.mask_id).all() and out.audit.used
