"""Checkpoints in each family's own layout: the published code's logits, every policy, no remote
code."""
import io, json, shutil, warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import navira
import navira.peers  # noqa: F401  registers the policies
from navira.models.dit import MaskedLM, with_head
from navira.models.transformers import LinearQuality, TransformersLM
from navira.sampler.registry import parameters, policies, policy
from helpers.peers import KINDS
from helpers.sample_api import says

FOLDERS = (
    'a2d-llama',
    'a2d-qwen2',
    'a2d-qwen3',
    'bd3lm',
    'bert',
    'diffugpt',
    'diffullama',
    'distilbert',
    'dream',
    'gidd',
    'llada',
    'modernbert',
    'proseco',
    'roberta',
)
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

def written(model, n): # [n] bool: ids that a model may write
    return ~torch.isin(torch.arange(n), torch.tensor([model.mask_id, *model.suppress]))

def test_every_family_is_here(golden): assert {p.name for p in golden.iterdir()} == set(FOLDERS)

@torch.inference_mode()
def test_logits_are_those_of_the_published_code(folder):
    model, told = loaded(folder, dtype='float32'), load_file(folder / 'golden.safetensors')
    with safe_open(folder / 'golden.safetensors', 'pt') as f:
        assert {'code', 'commit'} <= f.metadata().keys()
    x, keep = told['ids'], written(model, told['logits'].shape[-1])
    got = model(x).logits(torch.ones_like(x, dtype=torch.bool)).view(told['logits'].shape)
    torch.testing.assert_close(got[..., keep], told['logits'][..., keep], rtol=0, atol=1e-5)
    assert told['logits'].std() > .05 and (x == model.mask_id).any()
    assert model.shift == (folder.name in SHIFTED)
    assert isinstance(model, MaskedLM) == (folder.name in MDLMS)

def test_every_policy_runs_with_a_head_and_without(folder):
    model = loaded(folder)
    free = torch.full((1, 8), model.mask_id)
    def run(name):
        hyper = dict(eta=.1) if 'eta' in parameters(policies()[name]) else {}
        out = navira.sample(model, name, 8, n=2, prompt=free, length=8, eos='keep', **hyper)
        assert ((out.tokens != model.mask_id) & (out.tokens >= 0)).all()

    # critics are of one model
    names = set(policies() if folder.name == 'llada' else KINDS) - {'token-critic', 'g-star'}
    if folder.name in (*SHIFTED, 'modernbert'):            # which looks no farther than a window
        with says(ValueError, 'shadow'): run('wino')
        names.remove('wino')
    plain = {n for n in names if not policy(n).reads_quality}
    if model.quality is None:
        for name in names - plain:
            with says(ValueError, 'quality head'): navira.sample(model, name, 8, n=1, length=8)
        for name in plain: run(name)
        model = with_head(model) if isinstance(model, MaskedLM) else model
        if model.quality is None: model.quality = LinearQuality(16)
        for p in model.quality.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(0))
    for name in names - plain: run(name)

def test_texts_go_in_and_come_out(folder):
    model = loaded(folder)
    blank = model.tokenizer.id_to_token(model.mask_id) or '<|mask|>'
    for text in (f'the {blank}{blank} house', 'the [MASK*2] house'):
        out = navira.sample(model, 'backbone', 4, prompt=text, eos='keep')
        assert out.tokens.shape[1] < 16 and 'house' in out[0]
    more = navira.sample(model, 'backbone', 4, prompt='the man', max_new_tokens=5, eos='keep')
    assert (more.tokens >= 0).sum() - more.given == 5
    prompt = more.tokens[0, :more.given[0]].tolist()
    assert isinstance(model, MaskedLM) or '[SEP]' not in model.tokenizer.decode(prompt)

# --- blocks, of which none reads what is to its right ------------------------------------------

@torch.inference_mode()
def test_blocks_are_those_of_dllms_sampler(golden):
    "It puts padding before prompts, so that what it writes begins with a block."
    model, told = loaded(golden / 'bd3lm'), load_file(golden / 'bd3lm' / 'golden.safetensors')
    x, keep = told['padded'], written(model, 288)
    assert model.block == 4 and x[1, 0] < 0 <= x[1, 1]
    got, want = model(x).logits(x >= 0), told['padded_logits'][x >= 0]
    torch.testing.assert_close(got[:, keep], want[:, keep], rtol=0, atol=1e-5)
    out = navira.sample(model, 'llada-low-confidence', 4, prompt=told['text'][:, :4],
                        max_new_tokens=8, eos='keep')
    assert torch.equal(out.tokens, told['text'])

@torch.inference_mode()
def test_a_block_reads_itself_and_what_is_before_it(golden):
    model = loaded(golden / 'bd3lm', dtype='float64')
    x = torch.randint(1, 270, (2, 12), generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[:, 7] = model.mask_id
    moved = (model(x).h - model(y).h).abs().amax((0, 2)) > 1e-9
    assert moved.tolist() == [False] * 4 + [True] * 8
    shadows = model.shadow(x, x > 0)
    torch.testing.assert_close(shadows.h, model(x).h)
    other = model.shadow(y, x > 0).left_out(x > 0).view(2, 12, -1)
    same = shadows.left_out(x > 0).view(2, 12, -1).isclose(other)
    moved = ~same.all(-1).all(0)
    assert not moved[:4].any() and moved[4:7].all() and moved[8:].all()

@pytest.mark.parametrize('name', ['mdlm', 'remdm-conf', 'llada-low-confidence'])
def test_text_is_written_in_the_networks_blocks(golden, name):
    "They begin with the text, not with what is free, and rows share a batch."
    model = loaded(golden / 'bd3lm', dtype='float64')
    how = dict(budget=8, max_new_tokens=6, seed=1, eos='keep')
    x = navira.sample(model, name, prompt=[[5] * 6], trace=True, **how).trace.x[:, 0]
    masks = x == model.mask_id
    assert masks[0, 6:].all() and masks[masks[:, 6:8].any(1), 8:].all() and not masks[-1].any()
    how |= dict(prompt=[[5] * 6, [9, 8, 7]])
    both, alone = (navira.sample(model, name, batch_size=b, **how).tokens for b in (2, 1))
    assert torch.equal(both, alone)

@pytest.mark.parametrize('name', ['mdlm', 'llada-low-confidence', 'p2', 'mgdm'])
def test_a_cache_of_finished_blocks_changes_nothing(golden, name):
    model = loaded(golden / 'bd3lm', dtype='float64')
    how = dict(budget=24, max_new_tokens=12, seed=1, eos='keep', prompt=[[5] * 6, [9, 8, 7]])
    plain, kept = (navira.sample(model, name, cache=c, **how) for c in ('none', 'block'))
    assert torch.equal(plain.tokens, kept.tokens)
    assert (kept.n_forward < .6 * plain.n_forward).all()

def test_who_says_how_long_a_block_is(golden, tmp_path):
    one, two = loaded(golden / 'bd3lm'), loaded(golden / 'a2d-qwen3', block=4)
    x = torch.arange(1, 10)[None]
    assert two.config.block_size == 4
    torch.testing.assert_close(one(x).h, two(x).h)
    with pytest.warns(UserWarning, match='no block_size.*block= .32'):
        navira.load(changed(golden, tmp_path, 'bd3lm', block_size=None))
    with says(ValueError, 'block=0'): navira.load(golden / 'a2d-qwen3', block=0)
    with says(ValueError, 'block=4', "MDLM's architecture"): navira.load(block=4)

# --- as transformers does it ------------------------------------------------------------------

@pytest.mark.parametrize('how, off', [
    (dict(dtype='bfloat16'), .1), (dict(dtype='float64'), 1e-5), (dict(device_map='auto'), 1e-5),
    (dict(device_map={'': 'cpu'}), 1e-5), (dict(device='cpu'), 1e-5)])
def test_shards_precision_and_places(golden, how, off):
    one, model, x = (
        loaded(golden / 'llada'),
        loaded(golden / 'llada', **how),
        torch.full((1, 5), 277),
    )
    assert len(list((golden / 'llada').glob('model-0*.safetensors'))) == 3
    a, b = (m(x).logits(x == 277).float() for m in (model, one))
    torch.testing.assert_close(a, b, rtol=off, atol=off)

@pytest.mark.parametrize('name', ['llada', 'dream'])
def test_no_code_of_the_checkpoint_is_run(golden, tmp_path, name, monkeypatch):
    "Its config.json asks for code of its own; the code is there, and somebody would say yes."
    folder = shutil.copytree(golden / name, tmp_path / name)
    targets = json.loads((folder / 'config.json').read_text())['auto_map'].values()
    for file in (*(t.split('.')[0] for t in targets), 'tokenization_dream'):
        (folder / f'{file}.py').write_text(f'open({str(tmp_path / "ran")!r}, "w").close()\n')
    monkeypatch.setattr('sys.stdin', io.StringIO('y\n' * 9))
    assert navira.load(folder).tokenizer is not None and not (tmp_path / 'ran').exists()

@torch.inference_mode()
def test_saved_again_a_network_has_native_names(folder, tmp_path):
    "And its configuration says what its family knew: the mask, the shift, that it looks both ways."
    model = loaded(folder)
    navira.save(model, tmp_path)
    again = loaded(tmp_path)
    assert (again.mask_id, again.shift, again.eos_ids) == (
        model.mask_id,
        model.shift,
        model.eos_ids,
    )
    x = torch.randint(1, 10, (2, 9), generator=torch.Generator().manual_seed(0))
    x[:, 3:6] = model.mask_id
    torch.testing.assert_close(again(x).logits(x > 0), model(x).logits(x > 0))
    navira.save(model, tmp_path / 'half', torch.bfloat16)
    assert loaded(tmp_path / 'half', dtype='bf16').tokenizer is not None
    if isinstance(model, TransformersLM):
        names = load_file(tmp_path / 'model.safetensors').keys() | set(
            again.net.all_tied_weights_keys
        )
        assert (
            dict(model.net.named_parameters()).keys() <= names and model.net.dtype == torch.float32
        )


def changed(golden, tmp_path, name, **fields):
    folder = shutil.copytree(golden / name, tmp_path / name)
    config = json.loads((folder / 'config.json').read_text()) | fields
    (folder / 'config.json').write_text(
        json.dumps({k: v for k, v in config.items() if v is not None})
    )
    return folder

def without(folder, *names): # in the files of its tokenizer
    for file in folder.glob('*token*.json'):
        data = json.loads(file.read_text())
        file.write_text(json.dumps({k: v for k, v in data.items() if k not in names}))
    return folder

def test_a_network_that_was_never_adapted(golden, tmp_path):
    "A Llama's tokenizer has no mask, or one that was added; a BERT may read from left to right."
    plain = without(changed(golden, tmp_path, 'diffullama'), 'mask_token')
    with says(ValueError, 'which token is the mask?'): navira.load(plain)
    with pytest.warns(UserWarning, match='left to right.*noise.*adapted'):
        navira.load(plain, mask_id=277)
    masked = changed(golden, tmp_path / 'masked', 'diffullama', return_dict=None)
    with pytest.warns(UserWarning, match='left to right.*noise.*adapted'): navira.load(masked)
    bert = changed(golden, tmp_path, 'bert', is_decoder=True, architectures=['BertLMHeadModel'])
    with pytest.warns(UserWarning, match='left to right'): model = navira.load(bert)
    assert model.shift
    navira.save(model, tmp_path / 'again')
    assert loaded(tmp_path / 'again').shift                             # by now it looks both ways

def test_without_a_tokenizer_it_works_on_ids(golden, tmp_path):
    folder = changed(golden, tmp_path, 'bert')
    (folder / 'tokenizer.json').unlink()
    model = navira.load(folder, mask_id=277)
    assert (
        model.tokenizer is None
        and (navira.sample(model, 'mdlm', 4, n=1, length=6).tokens != 277).all()
    )
    with says(ValueError, 'no tokenizer'): navira.sample(model, 'mdlm', 4, prompt='a text')

# --- the end of a text ------------------------------------------------------------------------

@pytest.mark.parametrize(
    'name', ['llada', 'a2d-llama', 'dream', 'roberta']
)
def test_an_end_that_nobody_has_named_is_none(golden, tmp_path, name):
    "A class of the transformers library has one all the same: Llama's is token 2."
    folder = without(changed(golden, tmp_path, name, eos_token_id=None), 'eos_token', 'sep_token')
    (folder / 'generation_config.json').unlink(missing_ok=True)
    model = navira.load(folder)
    assert (
        model.eos_ids == () or model.text_tokenizer.eos_token_id is not None
    )  # Qwen2's brings its own
    assert 2 not in model.eos_ids
