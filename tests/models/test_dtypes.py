"""Models in bf16 and fp16: every policy samples, scores and logits leave in float32, frequencies and the last layer of
a head are not rounded; where a model goes, and what it is when it is loaded."""
import copy
import pytest, torch
from safetensors.torch import load_file

import navira.peers  # noqa: F401  registers the policies
from navira.models.layers import Rotary
from navira.models.load import check_device, load
from navira.models.load import save
from navira.sampling import sample
from test_registry import NAMES, made, prompts
from toys import critic_like, small_lm

# and by how much their logits may be off, which are as large as 4
LOW = {torch.bfloat16: .06, torch.float16: .008}

@pytest.fixture(scope='module')
def lm(): return small_lm(seed=3)

@pytest.fixture(scope='module')
def low(lm): return {d: copy.deepcopy(lm).to(d) for d in LOW}

@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad(): yield

@pytest.mark.parametrize('name', NAMES)
def test_every_policy_samples_from_a_model_in_16_bits(low, name):
    for model in low.values():
        x = prompts(model)[1:]
        out = sample(model, made(name, model), 8, 2, seed=5, prompt=x, trace=True)
        assert not (out.tokens == model.mask_id).any() and torch.equal(
            out.tokens[x != model.mask_id], x[x != model.mask_id])
        assert out.trace.score.dtype == torch.float32

@pytest.mark.parametrize('dtype', LOW)
def test_logits_and_qualities_are_near_those_in_32_bits(lm, low, dtype):
    x = prompts(lm)
    for where in (x == lm.mask_id, x == 3, torch.ones_like(x, dtype=torch.bool)):       # many positions, few, all
        want, got = lm(x).logits(where), low[dtype](x).logits(where)
        assert got.dtype == torch.float32 and torch.equal(got.isneginf(), want.isneginf())
        assert 0 < (got - want)[want.isfinite()].abs().max() < LOW[dtype]
    want, got = lm(x).quality(), low[dtype](x).quality()
    assert got.dtype == torch.float32 and 0 < (got - want).abs().max() < LOW[dtype]

@pytest.mark.parametrize('dtype', LOW)
def test_qualities_do_not_tie(low, dtype):
    "In bf16 most of 768 numbers would: the last layer works in fp32"
    x = torch.randint(0, 8, (64, 12), generator=torch.Generator().manual_seed(0))
    assert low[dtype](x).quality().unique().numel() > 700
    # 240 of them, rounded
    assert critic_like(low[dtype], n_blocks=1).to(dtype)(x).quality().unique().numel() > 400

@pytest.mark.parametrize(
    'change',
    [
        lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.half().float(),
        lambda m: copy.deepcopy(m).bfloat16()],
)
def test_frequencies_are_not_rounded(change):
    for got, want in zip(change(Rotary(64))(1024), Rotary(64)(1024), strict=True): assert torch.equal(got, want)
    assert Rotary(64).double().inv_freq.dtype == torch.float64

@pytest.mark.parametrize('dtype', LOW)
def test_autocast_over_weights_in_16_bits(low, dtype):
    x = prompts(low[dtype])
    with torch.autocast('cpu', torch.bfloat16): p = low[dtype](x)
    assert p.logits(x == 3).dtype == p.quality().dtype == p.h.dtype == torch.float32 and p.quality().isfinite().all()

def test_a_model_in_16_bits_can_be_trained(low):
    model = copy.deepcopy(low[torch.bfloat16]).requires_grad_(True)
    with torch.enable_grad():
        p = model(prompts(model))
        (p.logits(p.seen_masked)[:, :-1].square().mean() + p.quality().square().mean()).backward()
    assert all(q.grad is not None and q.grad.isfinite().all() for q in model.parameters())

def test_a_critic_in_16_bits(lm, low):
    out = sample(low[torch.bfloat16], 'token-critic', 8, 2, critic=critic_like(lm, n_blocks=1).bfloat16())
    assert not (out.tokens == lm.mask_id).any()

# --- loading ----------------------------------------------------------------------------------------------------------

@pytest.fixture
def folder(lm, tmp_path): save(lm, tmp_path / 'm'); return tmp_path / 'm'

@pytest.mark.parametrize(
    'names,want',
    [
        (('bfloat16', 'bf16', 'torch.bfloat16', torch.bfloat16), torch.bfloat16),
        (('float16', 'fp16', 'half', torch.float16), torch.float16),
        ((None, 'float32', 'fp32', torch.float32), torch.float32)],
)
def test_a_model_is_loaded_in_the_type_asked_for(folder, lm, names, want):
    for name in names:
        model = load(folder, dtype=name)
        assert {p.dtype for p in model.parameters()} == {
            want} and model.backbone.rotary_emb.inv_freq.dtype == torch.float32
        pairs = zip(model.parameters(), lm.parameters(), strict=True)
        assert all(torch.equal(a, b.to(want)) for a, b in pairs)
    assert sample(model, 'navira', 8, 1).tokens.shape == (1, lm.length)

def test_a_file_is_loaded_in_the_type_asked_for(folder, tmp_path):
    torch.save(load_file(folder / 'model.safetensors'), tmp_path / 'm.pt')
    for source in (folder / 'model.safetensors', tmp_path / 'm.pt'):
        assert {p.dtype for p in load(source, dtype='bf16').parameters()} == {torch.bfloat16}

@pytest.mark.parametrize(
    'name,words', [('bfloat61', "did you mean 'bfloat16'"), ('int8', 'expected one of float32'), (torch.int64, 'int64')]
)
def test_a_type_that_is_none(folder, name, words):
    with pytest.raises(KeyError) as e: load(folder, dtype=name)
    assert words in e.value.args[0]

def test_saved_in_16_bits_and_loaded(low, tmp_path):
    save(low[torch.bfloat16], tmp_path / 'm')
    model = load(tmp_path / 'm')
    pairs = zip(model.parameters(), low[torch.bfloat16].parameters(), strict=True)
    assert all(torch.equal(a, b.float()) for a, b in pairs)
    assert load_file(tmp_path / 'm' / 'model.safetensors')['backbone.rotary_emb.inv_freq'].dtype == torch.float32

def test_a_number_too_large_for_16_bits(folder, tmp_path):
    model = load(folder)
    model.backbone.blocks[0].attn_out.weight[0, 0] = -1e5
    save(model, tmp_path / 'large')
    with pytest.raises(
        ValueError,
        match="model.safetensors: backbone.blocks.0.attn_out.weight has numbers as large as 100000, "
              "too large for float16; expected dtype='bfloat16'",
    ):
        load(tmp_path / 'large', dtype='half')
    assert load(tmp_path / 'large', dtype='bf16').backbone.blocks[0].attn_out.weight[0, 0] < -99_000

# --- devices ----------------------------------------------------------------------------------------------------------

NOWHERE = pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')

@pytest.mark.parametrize(
    'name,words',
    [
        ('gpu', "device='gpu': did you mean 'cuda'? Here cpu is there"), ('GPU', "did you mean 'cuda'?"),
        ('cup', "did you mean 'cpu'?"), ('nowhere', "expected 'auto', 'cpu' or 'cuda'"), (1.5, 'device=1.5'),
        ('cuda', "device='cuda': PyTorch sees no such device here; cpu is there"), ('cuda:1', 'no such device here'),
        (torch.device('cuda', 1), 'no such device here'), ('mps', 'no such device here')],
)
@NOWHERE
def test_a_device_that_is_not_there(name, words):
    with pytest.raises(ValueError) as e: load(device=name)
    assert words in str(e.value)

@NOWHERE
def test_devices_that_are_there(folder):
    for name in (None, 'cpu', 'auto', torch.device('cpu')): assert load(folder, name).device == torch.device('cpu')

@NOWHERE
@pytest.mark.parametrize('name', ['gpu', 'cuda', 'cupa'])
def test_the_command_line_answers_alike(name, capsys):
    from navira.cli.app import main
    with pytest.raises(ValueError) as e: load(device=name)
    with pytest.raises(SystemExit): main(['generate', '--device', name])
    assert capsys.readouterr().err.strip() == f'navira: {e.value}'

def test_a_gpu_is_taken_by_auto_and_by_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    assert [check_device(d) for d in ('auto', 'cuda', 'cuda:1', None)] == [
        torch.device('cuda'), torch.device('cuda'), torch.device('cuda:1'), torch.device('cpu')]
    with pytest.raises(ValueError, match='cuda:0 to cuda:1 and cpu are there'): check_device('cuda:2')
    with pytest.raises(ValueError, match='cuda:0 to cuda:1 and cpu are there'): check_device('gpu')
