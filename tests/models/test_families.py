"""Checkpoints in each family's own layout (their logits: nbs/models/families): every policy, no
remote code, blocks, bad input in one sentence; and networks to start from."""
import io, json, os, pickle, shutil, warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

import navira
from navira.models.dit import MaskedLM, with_head
from navira.models.families import pretrained
from navira.models.adapter import LinearQuality
from navira.models.transformers import wrap
from helpers.checkpoints import refused
from helpers.metrics import unshipped  # noqa: F401
from helpers.peers import WITHOUT_CRITIC
from helpers.sample_api import says

SHIFTED = 'diffugpt', 'diffullama', 'dream'
FOLDERS = ('a2d-llama', 'a2d-qwen2', 'a2d-qwen3', 'bd3lm', 'bert', 'distilbert', 'gidd', 'llada',
           'modernbert', 'proseco', 'roberta', *SHIFTED)
PUBLISHED = ('diffusion-gemma', 'dream-reasoner', 'fast-dllm-v2', 'illada', 'lfm2', 'llada-moe',
             'llada2', 'nemotron', 'rnd1', 'sdar', 'sdar-moe', 'wedlm')
# in test_published and test_canvas

@pytest.fixture(params=FOLDERS)
def folder(request, golden): return golden / request.param

def loaded(folder, **how):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        return navira.load(folder, **how)

def test_every_family_is_here(golden):
    assert {p.name for p in golden.iterdir()} == {*FOLDERS, *PUBLISHED}

def test_every_kind_of_policy_runs(folder):
    model = loaded(folder)
    assert model.shift == (folder.name in SHIFTED)
    if isinstance(model, MaskedLM): model = with_head(model)
    elif model.quality is None: model.quality = LinearQuality(16)
    generator = torch.Generator().manual_seed(0)
    for p in model.quality.parameters():
        if p.dim() > 1: p.data.normal_(0, .1, generator=generator)
    def run(name): return navira.sample(model, name, 8, n=2, length=8, eos='keep').tokens
    for name in WITHOUT_CRITIC:
        if name == 'wino' and folder.name in (*SHIFTED, 'modernbert'):   # it looks at a window
            with says(ValueError, 'shadow'): run(name)
        else: assert not torch.isin(run(name), torch.tensor([model.mask_id, -1])).any()

def test_texts_go_in_and_come_out(folder):
    model = loaded(folder)
    blank = model.tokenizer.id_to_token(model.mask_id) or '<|mask|>'
    out = navira.sample(model, 'backbone', 4, prompt=f'the {blank}{blank} house', eos='keep')
    assert out.tokens.shape[1] < 16 and 'house' in out[0]
    more = navira.sample(model, 'backbone', 4, prompt='the man', max_new_tokens=5, eos='keep')
    assert (more.tokens >= 0).sum() - more.given == 5
    prompt = more.tokens[0, :more.given[0]].tolist()
    assert isinstance(model, MaskedLM) or '[SEP]' not in model.tokenizer.decode(prompt)

@torch.inference_mode()
def test_saved_again_a_network_has_native_names(folder, tmp_path):
    "And its configuration says what its family knew: the mask, the shift, that it looks both ways."
    model = loaded(folder)
    navira.save(model, tmp_path)
    again = loaded(tmp_path, device_map=None if isinstance(model, MaskedLM) else 'auto')
    def facts(m): return m.mask_id, m.shift, m.eos_ids, m.tokenizer.get_vocab_size()
    assert facts(again) == facts(model)
    x = torch.arange(1, 10)[None].masked_fill(torch.arange(9) % 4 == 2, model.mask_id)
    torch.testing.assert_close(again(x).logits(x > 0), model(x).logits(x > 0))
    if isinstance(model, MaskedLM): return
    names = {*load_file(tmp_path / 'model.safetensors'), *again.net.all_tied_weights_keys}
    assert dict(model.net.named_parameters()).keys() <= names

def test_no_code_of_the_checkpoint_is_run(copied, tmp_path, monkeypatch):
    "Its config.json asks for code of its own; the code is there, and somebody would say yes."
    folder = copied('dream')
    targets = json.loads((folder / 'config.json').read_text())['auto_map'].values()
    for file in (*(t.split('.')[0] for t in targets), 'tokenization_dream'):
        (folder / f'{file}.py').write_text(f'open({str(tmp_path / "ran")!r}, "w").close()\n')
    monkeypatch.setattr('sys.stdin', io.StringIO('y\n' * 9))
    assert navira.load(folder).tokenizer is not None and not (tmp_path / 'ran').exists()

def test_without_a_tokenizer_it_works_on_ids(copied):
    folder = copied('bert', 'tokenizer.json')
    model = navira.load(folder, mask_id=277)
    assert model.tokenizer is None
    assert (navira.sample(model, 'mdlm', 4, n=1, length=6).tokens != 277).all()
    with says(ValueError, 'no tokenizer'): navira.sample(model, 'mdlm', 4, prompt='a text')
    refused(folder, 'which token is the mask', 'mask_id=')

def without(folder, *names): # in the files of its tokenizer
    for file in folder.glob('*token*.json'):
        data = json.loads(file.read_text())
        file.write_text(json.dumps({k: v for k, v in data.items() if k not in names}))
    return folder

def test_a_network_that_was_never_adapted(copied, tmp_path):
    "A Llama's tokenizer has no mask, or one that was added; a BERT may read from left to right."
    warned = 'left to right.*noise.*adapted'
    masked = copied('diffullama', return_dict='absent')
    with pytest.warns(UserWarning, match=warned): navira.load(masked)
    plain = without(masked, 'mask_token')
    with says(ValueError, 'which token is the mask?'): navira.load(plain)
    with pytest.warns(UserWarning, match=warned): navira.load(plain, mask_id=277)
    bert = copied('bert', is_decoder=True, architectures=['BertLMHeadModel'])
    with pytest.warns(UserWarning, match=warned): model = navira.load(bert)
    assert model.shift
    navira.save(model, tmp_path / 'again')
    assert loaded(tmp_path / 'again').shift                             # by now it looks both ways

@pytest.mark.parametrize('name', ['llada', 'a2d-llama', 'dream', 'roberta'])
def test_an_end_that_nobody_has_named_is_none(copied, name):
    "A class of the transformers library has one all the same: Llama's is token 2."
    folder = copied(name, 'generation_config.json', eos_token_id='absent')
    model = navira.load(without(folder, 'eos_token', 'sep_token'))
    # Qwen2's brings its own
    assert model.eos_ids == () or model.text_tokenizer.eos_token_id is not None
    assert 2 not in model.eos_ids

# --- blocks, of which none reads what is to its right ------------------------------------------

@torch.inference_mode()
def test_blocks_are_those_of_dllms_sampler(golden):
    "It puts padding before prompts, so that what it writes begins with a block."
    model, told = loaded(golden / 'bd3lm'), load_file(golden / 'bd3lm' / 'golden.safetensors')
    x, keep = told['padded'], torch.ones(288, dtype=torch.bool)
    keep[[model.mask_id, *model.suppress]] = False
    assert model.block == 4 and x[1, 0] < 0 <= x[1, 1]
    got, want = model(x).logits(x >= 0), told['padded_logits'][x >= 0]
    torch.testing.assert_close(got[:, keep], want[:, keep], rtol=0, atol=1e-5)

@torch.inference_mode()
def test_a_shadow_reads_its_block_and_what_is_before_it(golden):
    model = loaded(golden / 'bd3lm', dtype='float64')
    x = torch.randint(1, 270, (2, 12), generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[:, 7] = model.mask_id
    one, two = (model.shadow(v, x > 0).left_out(x > 0) for v in (x, y))
    same = one.isclose(two).all(-1).view(2, 12).any(0)
    assert same[:4].all() and not same[4:7].any() and not same[8:].any()

@pytest.mark.parametrize('name', ['mdlm', 'llada-low-confidence', 'p2'])
def test_text_is_written_in_the_networks_blocks_and_a_cache_changes_nothing(golden, name):
    "They begin with the text, not with what is free, and rows of two lengths share a batch."
    model = loaded(golden / 'bd3lm', dtype='float64')
    how = dict(budget=24, max_new_tokens=12, seed=1, eos='keep')
    alone = navira.sample(model, name, prompt=[[5] * 6], trace=True, **how)
    masks = alone.trace.x[:, 0] == model.mask_id
    assert masks[0, 6:].all() and masks[masks[:, 6:8].any(1), 8:].all() and not masks[-1].any()
    both = navira.sample(model, name, prompt=[[5] * 6, [9, 8, 7]], cache='block', **how)
    assert torch.equal(both.tokens[0], alone.tokens[0])
    assert both.n_forward[0] < .6 * alone.n_forward[0]

def test_who_says_how_long_a_block_is(golden, copied):
    assert loaded(golden / 'a2d-qwen3', block=4).config.block_size == 4
    with pytest.warns(UserWarning, match='no block_size.*block= .32'):
        navira.load(copied('bd3lm', block_size='absent'))
    with says(ValueError, 'block=0'): navira.load(golden / 'a2d-qwen3', block=0)

# --- bad input: one sentence, which names the folder --------------------------------------------

@pytest.mark.parametrize('name, fields, parts', [
    ('a2d-llama', dict(hidden_size=32), ['[288, 16] in the file', '[288, 32] by config.json']),
    ('a2d-llama', dict(hidden_size='big'), ["'hidden_size'", "'big'"]),
    ('a2d-llama', dict(is_encoder_decoder=True), ['encoder-decoder']),
    *(('bert', {k: 10**9}, [f'config.json: {k}=1000000000', 'at most']) for k in (
        'num_hidden_layers n_layers num_labels hidden_size vocab_size num_key_value_heads '
        'd_model').split()),
    ('a2d-llama', dict(num_hidden_layers=3, layer_types=None), ['Missing', 'layers.2']),
    ('a2d-llama', dict(mask_token_id=280), ['280 or 277', 'mask_id=']),
    ('a2d-llama', dict(mask_token_id='<mask>'), ['which token is the mask']),
    ('a2d-llama', dict(eos_token_id=[2, 'x']), ["'eos_token_id'", "'x'"]),
    ('llada', dict(alibi=True), ['alibi=True']), ('llada', dict(d_model='absent'), ['d_model']),
    ('gidd', dict(t_eps=.01), ['t_eps=0.01']),
    ('gidd', dict(timestep_cond_dim='absent'), ["no 'timestep_cond_dim'"])])
def test_a_configuration_that_cannot_be(copied, name, fields, parts):
    refused(copied(name, **fields), *parts)

class Hostile:
    def __reduce__(self): return eval, ("open('ran', 'w').close()",)

@pytest.mark.parametrize('content', [pickle.dumps({'a': Hostile()}), b'junk' * 50])
@pytest.mark.filterwarnings('ignore:Detected pickle protocol')
def test_a_pickle_is_not_run(copied, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copied('a2d-llama', '*model*.safetensors')
    refused(folder, 'no file named model.safetensors')
    (folder / 'pytorch_model.bin').write_bytes(content)
    refused(folder)
    assert not (tmp_path / 'ran').exists()

KEY = 'model.layers.1.self_attn.q_proj.weight'

@pytest.mark.parametrize('change, part', [
    (lambda w: {KEY: w[KEY].index_fill(0, torch.tensor(0), torch.nan)}, f'{KEY} holds NaN'),
    (lambda w: {KEY: w[KEY].to(torch.int8)}, 'weights of type'),
    # RemeDi's config.json says `llada`, but its second stream changes the first
    (lambda w: {'model.blocks_upm.0.attn_norm.weight': torch.ones(2)}, 'unexpected: model.blocks'),
    (lambda w: {'model.layers.1.self_attn.rotary_emb.inv_freq': torch.ones(2)}, None)])
def test_weights_that_cannot_be_are_named(golden, copied, change, part):
    "Computed buffers of old files are ignored."
    folder = copied('a2d-llama', change(load_file(golden / 'a2d-llama' / 'model.safetensors')))
    if part: refused(folder, part)
    else: navira.load(folder)

@pytest.mark.parametrize('name', ['bert', 'proseco'])
@pytest.mark.parametrize('file', ['config.json', 'model.safetensors', 'tokenizer.json',
                                  'quality.safetensors', 'generation_config.json'])
def test_nothing_waits_for_a_pipe(copied, golden, name, file):
    folder = copied(name)
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    refused(folder, file, 'pipe')
    with says(ValueError, file, 'pipe'): pretrained(folder)
    if file == 'quality.safetensors':
        with says(ValueError, file, 'pipe'): navira.load(golden / 'bert', head=folder)
    (folder / file).unlink()
    (folder / file).symlink_to('/dev/zero')
    refused(folder, file, 'a device')

@pytest.mark.parametrize('name, value, part', [
    ('shift', 'yes', "shift='yes'"), ('head', 5, 'head=5'), ('mask_id', 'x', "mask_id='x'"),
    ('mask_id', 4000, 'mask_id=4000'), ('device_map', 'foo', 'foo')])
def test_no_argument_is_ignored(golden, name, value, part):
    with says(ValueError, part): navira.load(golden / 'llada', **{name: value})

def test_wrap(golden):
    model = navira.load(golden / 'bert')
    with says(ValueError, "mask_id='<mask>'"): wrap(model.net, mask_id='<mask>')
    assert wrap(model.net, mask_id=3.).mask_id == 3
    model.text_tokenizer.add_tokens([f'new{i}' for i in range(9)])
    with says(ValueError, 'has a token', 'the network has 288'):
        wrap(model.net, model.text_tokenizer, mask_id=5)

# --- networks to start from: a decoder without a mask, an encoder without a head ----------------

@pytest.fixture(scope='module')
def toys(pytestconfig): return pytestconfig.rootpath / 'tests' / 'pretrained'

@pytest.mark.parametrize('file', ['llama', 'llama.gguf'])
def test_a_decoder_keeps_its_weights_and_gets_one_word_more(toys, tmp_path, file):
    "The GGUF is the same Llama, written by gguf's own `GGUFWriter`, with another tokenizer."
    if file.endswith('gguf'): pytest.importorskip('gguf')
    was, model = LlamaForCausalLM.from_pretrained(toys / 'llama'), pretrained(toys / file)
    now, V = model.net.state_dict(), was.config.vocab_size
    for name, w in was.state_dict().items(): assert torch.equal(now[name][:len(w)], w), name
    assert model.mask_id >= V and model.tokenizer.token_to_id('<|mask|>') == model.mask_id
    assert model.net.get_output_embeddings().weight is model.net.get_input_embeddings().weight
    navira.save(model, tmp_path)
    for again in (pretrained(tmp_path), navira.load(tmp_path)):
        assert all(torch.equal(w, now[k]) for k, w in again.net.state_dict().items())
        assert (again.mask_id, again.shift) == (model.mask_id, True)

def test_weights_may_be_missing_in_a_head_alone(toys, tmp_path):
    folder = shutil.copytree(toys / 'bert', tmp_path / 'bert')
    w = load_file(folder / 'model.safetensors')
    del w['encoder.layer.0.output.dense.weight']
    save_file(w, folder / 'model.safetensors', metadata=dict(format='pt'))
    with says(ValueError, '1 in all', 'Missing: bert.encoder.layer.0.output.dense.weight'):
        pretrained(folder)

@pytest.mark.parametrize('text, error, why', [
    ('[]', ValueError, 'JSON object'), (None, FileNotFoundError, 'config.json'),
    ('{"model_type": "vit"}', ValueError, 'ViTConfig'),
    ('{"model_type": "t5", "is_encoder_decoder": true}', ValueError, 'T5Config')])
def test_a_network_to_start_from_that_is_none(toys, tmp_path, text, error, why):
    if text is not None: (tmp_path / 'config.json').write_text(text)
    with says(error, str(tmp_path), why): pretrained(tmp_path)
    with says(FileNotFoundError, 'none.gguf: not found'): pretrained(tmp_path / 'none.gguf')
    (tmp_path / 'cut.gguf').write_bytes((toys / 'llama.gguf').read_bytes()[:300])
    with says(ValueError, 'cut.gguf: not a readable GGUF'): pretrained(tmp_path / 'cut.gguf')

def test_without_its_base_a_model_says_what_brings_it(unshipped):  # noqa: F811
    with pytest.raises(ImportError, match='navira reference install'): navira.load('smollm2')
