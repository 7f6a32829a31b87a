"""Checkpoints in each family's own layout: the published code's logits, every policy, no remote code, sentences."""
import io, json, shutil, subprocess, sys, warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import navira
import navira.peers  # noqa: F401  registers the policies
from navira.models.dit import MaskedLM, with_head
from navira.models.families import FAMILIES, family_of
from navira.models.transformers import LinearQuality, TransformersLM
from navira.registry import parameters, policies, policy
from helpers.sample_api import says

FOLDERS = ('a2d-llama', 'a2d-qwen2', 'a2d-qwen3', 'bert', 'diffugpt', 'diffullama', 'distilbert', 'dream', 'gidd',
           'llada', 'modernbert', 'proseco', 'roberta')
MDLMS = 'gidd', 'proseco'          # with MDLM's layers, and no network of the transformers library
SHIFTED = 'diffugpt', 'diffullama', 'dream'

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

@pytest.fixture(params=FOLDERS)
def folder(request, golden): return golden / request.param

def loaded(folder, **kw):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        return navira.load(folder, **kw)

def test_every_family_is_here(golden):
    assert {p.name for p in golden.iterdir()} == set(FOLDERS)

@torch.inference_mode()
def test_logits_are_those_of_the_published_code(folder):
    model, told = loaded(folder, dtype='float32'), load_file(folder / 'golden.safetensors')
    with safe_open(folder / 'golden.safetensors', 'pt') as f: assert {'code', 'commit'} <= f.metadata().keys()
    x, keep = told['ids'], torch.arange(told['logits'].shape[-1]) != model.mask_id
    got = model(x).logits(torch.ones_like(x, dtype=torch.bool)).view(told['logits'].shape)
    torch.testing.assert_close(got[..., keep], told['logits'][..., keep], rtol=0, atol=1e-5)
    assert told['logits'].std() > .05 and (x == model.mask_id).any()
    assert getattr(model, 'shift', False) == (folder.name in SHIFTED)

def test_every_policy_runs_with_a_head_and_without(folder):
    model = loaded(folder)
    free = torch.full((1, 8), model.mask_id)
    def run(name):
        hyper = dict(eta=.1) if 'eta' in parameters(policies()[name]) else {}
        out = navira.sample(model, name, 8, n=2, prompt=free, length=8, eos='keep', **hyper)
        assert out.tokens.shape == (2, 8) and (out.tokens != model.mask_id).all() and (out.tokens >= 0).all()
    names = [n for n in policies() if n not in {'token-critic', 'g-star'}]     # they bring a network for one model
    if folder.name in SHIFTED or folder.name == 'modernbert':     # which looks no farther than a window
        with says(ValueError, folder.name == 'modernbert' and 'is off by' or 'without shift'): run('wino')
        names.remove('wino')
    plain = [n for n in names if not policy(n).reads_quality]
    assert len(plain) > 20
    if model.quality is None:
        for name in set(names) - set(plain):
            with says(ValueError, 'quality head'): navira.sample(model, name, 8, n=1, length=8)
        for name in plain: run(name)
        model = with_head(model) if isinstance(model, MaskedLM) else model
        if model.quality is None: model.quality = LinearQuality(16)
        for p in model.quality.parameters():
            if p.dim() > 1: torch.nn.init.normal_(p, std=.1, generator=torch.Generator().manual_seed(0))
    for name in set(names) - set(plain): run(name)

def test_texts_go_in_and_come_out(folder):
    model = loaded(folder)
    blank = model.tokenizer.id_to_token(model.mask_id) or '<|mask|>'
    for text in (f'the {blank}{blank} house', 'the [MASK*2] house'):
        out = navira.sample(model, 'backbone', 4, prompt=text, eos='keep')
        assert out.tokens.shape[1] < 16 and 'house' in out[0]
    more = navira.sample(model, 'backbone', 4, prompt='the man', max_new_tokens=5, eos='keep')
    assert (more.tokens >= 0).sum() - more.given == 5
    if isinstance(model, TransformersLM):
        assert '[SEP]' not in model.tokenizer.decode(more.tokens[0, :more.given[0]].tolist())

# --- as transformers does it ------------------------------------------------------------------------------------------

def test_shards_precision_and_places(golden):
    one, x = loaded(golden / 'llada'), torch.full((1, 5), 277)
    assert len(list((golden / 'llada').glob('model-0*.safetensors'))) == 3
    for how in (dict(dtype='bfloat16'), dict(dtype='float64'), dict(device_map='auto'), dict(device_map={'': 'cpu'}),
                dict(device='cpu')):
        model = loaded(golden / 'llada', **how)
        tol = .1 if how.get('dtype') == 'bfloat16' else 1e-5
        torch.testing.assert_close(model(x).logits(x == 277).float(), one(x).logits(x == 277), rtol=tol, atol=tol)
    with says(ValueError, 'device=', 'device_map='): navira.load(golden / 'llada', device='cpu', device_map='auto')

@pytest.mark.parametrize('name', ['llada', 'dream'])
def test_no_code_of_the_checkpoint_is_run(golden, tmp_path, name, monkeypatch):
    "Its config.json asks for code of its own; the code is there, and somebody would say yes."
    folder = shutil.copytree(golden / name, tmp_path / name)
    said = json.loads((folder / 'config.json').read_text())
    assert said['auto_map']
    for target in said['auto_map'].values():
        (folder / (target.split('.')[0] + '.py')).write_text(f'open({str(tmp_path / "ran")!r}, "w").close()\n')
    (folder / 'tokenization_dream.py').write_text(f'open({str(tmp_path / "ran")!r}, "w").close()\n')
    monkeypatch.setattr('sys.stdin', io.StringIO('y\n' * 9))
    assert navira.load(folder).tokenizer is not None and not (tmp_path / 'ran').exists()

@torch.inference_mode()
@pytest.mark.parametrize('name', [f for f in FOLDERS if f not in MDLMS])
def test_saved_again_a_network_has_native_names(golden, tmp_path, name):
    "And its configuration says what its family knew: the mask, the shift, that it looks both ways."
    model = loaded(golden / name)
    model.net.save_pretrained(tmp_path); model.text_tokenizer.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        again = navira.load(tmp_path)
    native = dict(model.net.named_parameters()).keys()
    assert native <= load_file(tmp_path / 'model.safetensors').keys() | set(again.net.all_tied_weights_keys)
    assert (again.mask_id, again.shift, again.eos_ids) == (model.mask_id, model.shift, model.eos_ids)
    x = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    x[:, 3:6] = model.mask_id
    assert torch.equal(again(x).logits(x > 0), model(x).logits(x > 0))

@pytest.mark.parametrize('name', MDLMS)
def test_networks_of_mdlms_layers(golden, name): assert isinstance(loaded(golden / name), MaskedLM)

def test_remedi_is_not_taken_for_llada(golden, tmp_path):
    "Its config.json says `llada`, but a second stream changes the first: without it the logits would be wrong."
    folder = tmp_path / 'remedi'
    shutil.copytree(golden / 'llada', folder)
    path = next(folder.glob('model*.safetensors'))
    more = {'model.blocks_upm.0.attn_norm.weight': torch.ones(16), 'model.linear_confidence.bias': torch.ones(1)}
    save_file(load_file(path) | more, path, metadata=dict(format='pt'))
    with says(ValueError, 'not the weights of this configuration', 'unexpected', 'blocks_upm'): navira.load(folder)

def test_a_llama_that_was_never_adapted(golden, tmp_path):
    "Its tokenizer has no mask, or one that was added; DiffuGPT's and DiffuLLaMA's have one, and their configurations"
    folder = unmasked(golden, tmp_path)
    with says(ValueError, 'which token is the mask?'): navira.load(folder)
    with pytest.warns(UserWarning, match='left to right.*noise.*adapted'): navira.load(folder, mask_id=277)
    masked = changed(golden, tmp_path / 'masked', 'diffullama', return_dict=None)
    with pytest.warns(UserWarning, match='left to right.*noise.*adapted'): navira.load(masked)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for kind in ('diffugpt', 'diffullama'): assert navira.load(golden / kind).shift

def test_the_core_does_not_import_transformers():
    code = ('import sys, navira; m = navira.load(); navira.sample(m, "navira-det", 4, length=8); '
            'sys.exit("transformers" in sys.modules)')
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0

# --- mistakes ---------------------------------------------------------------------------------------------------------

def unmasked(golden, tmp_path): # a Llama whose tokenizer calls no token the mask
    folder = changed(golden, tmp_path, 'diffullama')
    for f in folder.glob('*token*.json'):
        said = json.loads(f.read_text())
        said.pop('mask_token', None)
        f.write_text(json.dumps(said))
    return folder

def changed(golden, tmp_path, name='llada', drop=(), **settings):
    folder = shutil.copytree(golden / name, tmp_path / name)
    for f in drop: (folder / f).unlink()
    said = json.loads((folder / 'config.json').read_text()) | settings
    (folder / 'config.json').write_text(json.dumps({k: v for k, v in said.items() if v is not None}))
    return folder

@pytest.mark.parametrize('settings, parts', [
    (dict(model_type='lada'), ["'lada'", "'llada'", 'a2d-qwen3, dit, Dream', 'mdlm', 'bert']),
    (dict(model_type='t5'), ['encoder-decoder']), (dict(model_type='mamba'), ["'mamba'"]),
    (dict(is_encoder_decoder=True), ['encoder-decoder']),
    (dict(block_type='sequential'), ["block_type='sequential'", "'llama'"]), (dict(alibi=True), ['alibi=True']),
    (dict(d_model=None), ['d_model']), (dict(d_model=32), ['not the weights']),
    (dict(n_layers=3), ['Missing', 'layers.2']), (dict(n_layers=1), ['unexpected', 'layers.1']),
    (dict(mask_token_id=4000), ['mask_id=4000', '319']), (dict(mask_token_id=300), ['300', 'tokenizer'])])
def test_a_configuration_that_does_not_fit(golden, tmp_path, settings, parts):
    folder = changed(golden, tmp_path, **settings)
    with says(ValueError, *parts): navira.load(folder)

@pytest.mark.parametrize('name', ['bert', 'dream', 'roberta', 'a2d-qwen3'])
def test_half_a_network_is_none(golden, tmp_path, name):
    folder = changed(golden, tmp_path, name, num_hidden_layers=1, layer_types=None)
    with says(ValueError, 'not the weights', 'unexpected', '.1.'): navira.load(folder)

def test_numbers_that_old_files_keep_in_a_block_are_no_block(golden, tmp_path):
    folder = changed(golden, tmp_path, 'a2d-llama')
    weights, key = load_file(folder / 'model.safetensors'), 'model.layers.1.self_attn.rotary_emb.inv_freq'
    save_file(weights | {key: torch.ones(2)}, folder / 'model.safetensors', metadata={'format': 'pt'})
    navira.load(folder)

def test_a_bert_that_was_trained_from_left_to_right(golden, tmp_path):
    folder = changed(golden, tmp_path, 'bert', is_decoder=True, architectures=['BertLMHeadModel'])
    with pytest.warns(UserWarning, match='left to right'): model = navira.load(folder)
    assert model.shift
    model.net.save_pretrained(tmp_path / 'again'); model.text_tokenizer.save_pretrained(tmp_path / 'again')
    assert loaded(tmp_path / 'again').shift                             # by now it looks both ways

# --- the end of a text

@pytest.mark.parametrize('name', ['bert', 'distilbert'])
def test_a_text_of_an_encoder_ends_with_its_separator(golden, name):
    model = loaded(golden / name)
    assert model.eos_ids == (model.text_tokenizer.sep_token_id,)

@pytest.mark.parametrize('name', ['llada', 'a2d-llama', 'dream', 'diffugpt', 'roberta', 'modernbert'])
def test_an_end_that_nobody_has_named_is_none(golden, tmp_path, name):
    "A class of the transformers library has one all the same: Llama's is token 2."
    folder = changed(golden, tmp_path, name, drop=[f for f in ('generation_config.json', ) if
                                                  (golden / name / f).exists()], eos_token_id=None)
    for f in ('tokenizer_config.json', 'special_tokens_map.json'):
        said = json.loads((folder / f).read_text())
        (folder / f).write_text(json.dumps({k: v for k, v in said.items() if k not in ('eos_token', 'sep_token')}))
    model = navira.load(folder)
    assert model.eos_ids == () or model.text_tokenizer.eos_token_id is not None      # Qwen2's tokenizer brings its own
    assert 2 not in model.eos_ids

def test_an_end_outside_the_vocabulary_ends_nothing(golden, tmp_path):
    folder = changed(golden, tmp_path, 'a2d-llama', eos_token_id=[276, 5000])
    model = navira.load(folder)
    assert model.eos_ids == (276,)
    assert (navira.sample(model, 'mdlm', 4, n=2, length=6, eos='suppress').tokens != 276).all()

# --- mistakes

def test_what_is_missing_or_damaged(golden, tmp_path):
    bare = changed(golden, tmp_path / 'a', 'a2d-llama', drop=['tokenizer.json'])
    with says(ValueError, 'which token is the mask', 'mask_id='): navira.load(bare)
    model = navira.load(bare, mask_id=277)
    assert model.tokenizer is None and (navira.sample(model, 'mdlm', 4, n=1, length=6).tokens != 277).all()
    with says(ValueError, 'no tokenizer'): navira.sample(model, 'mdlm', 4, prompt='a text')
    empty = changed(golden, tmp_path / 'b', 'bert', drop=['model.safetensors'])
    with says(FileNotFoundError, 'no weights', 'safetensors'): navira.load(empty)
    cut = changed(golden, tmp_path / 'c', 'bert')
    (cut / 'model.safetensors').write_bytes((cut / 'model.safetensors').read_bytes()[:2000])
    with says(ValueError, 'bert'): navira.load(cut)
    odd = changed(golden, tmp_path / 'd', 'bert')
    (odd / 'tokenizer.json').write_text('{"no": "tokenizer"}')
    with says(ValueError, 'tokenizer'): navira.load(odd)
    panics = changed(golden, tmp_path / 'd2', 'bert')
    said = json.loads((panics / 'tokenizer.json').read_text())
    said['post_processor']['special_tokens'] = {}
    (panics / 'tokenizer.json').write_text(json.dumps(said))
    with says(ValueError, 'd2', 'tokenizer'): navira.load(panics)
    (tmp_path / 'x.gguf').write_bytes(b'GGUF')
    with says(ValueError, 'x.gguf', 'GGUF', 'safetensors'): navira.load(tmp_path / 'x.gguf')
    headless = changed(golden, tmp_path / 'e', 'bert', architectures=['BertModel'])
    with says(ValueError, 'BertModel', 'BertForMaskedLM'): navira.load(headless)
    few = changed(golden, tmp_path / 'f', 'bert')
    weights = load_file(few / 'model.safetensors')
    weights.pop('bert.encoder.layer.1.output.dense.weight')
    save_file(weights, few / 'model.safetensors', metadata={'format': 'pt'})
    with says(ValueError, 'Missing', 'layer.1.output.dense.weight'): navira.load(few)

def test_ours_takes_no_settings_of_theirs():
    from navira.models.sources import WEIGHTS
    file = WEIGHTS / 'model.safetensors'
    for source in (WEIGHTS, file):
        for given in (dict(shift=True), dict(mask_id=3), dict(device_map='auto')):
            with says(ValueError, *given, "MDLM's"): navira.load(source, **given)

def test_a_revision_is_of_the_hub(golden):
    from navira.models.sources import WEIGHTS
    for source in (None, WEIGHTS, WEIGHTS / 'model.safetensors', golden / 'bert'):
        with says(ValueError, "revision='x'", 'Hub'): navira.load(source, revision='x')

def test_a_name_for_each(): assert all(family_of(dict(model_type=k)) is f for k, f in FAMILIES.items())
