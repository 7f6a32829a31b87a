"Models in bf16 and fp16: qualities and logits are float32; devices and types."
import copy

import pytest
import torch
from safetensors.torch import load_file

from navira.models.load import load, save
from navira.sampling import sample
from helpers.checkpoints import no_grad  # noqa: F401
from helpers.sample_api import says
from toys import critic_like, small_lm

def prompts(lm):
    "Three rows with 0, 3 and 7 given tokens, some in the middle"
    x = torch.full((3, 12), lm.mask_id)
    x[1, [0, 4, 5]] = torch.tensor([1, 2, 3])
    x[2, [0, 1, 2, 6, 7, 10, 11]] = torch.tensor([4, 5, 6, 7, 8, 9, 1])
    return x

# and by how much their logits may be off, which are as large as 4
LOW = {torch.bfloat16: .06, torch.float16: .008}

@pytest.fixture(scope='module')
def lm(): return small_lm(seed=3)

@pytest.fixture(scope='module', params=LOW)
def low(lm, request): return copy.deepcopy(lm).to(request.param)

def test_logits_and_qualities_are_near_those_in_32_bits(lm, low):
    x, off = prompts(lm), LOW[next(low.parameters()).dtype]
    for where in (x == lm.mask_id, x == 3, torch.ones_like(x, dtype=torch.bool)):
        want, got = lm(x).logits(where), low(x).logits(where)
        assert got.dtype == torch.float32 and torch.equal(got.isneginf(), want.isneginf())
        assert 0 < (got - want)[want.isfinite()].abs().max() < off
    want, got = lm(x).quality(), low(x).quality()
    assert got.dtype == torch.float32 and 0 < (got - want).abs().max() < off
    for model in (lm, low):
        with torch.autocast('cpu', torch.bfloat16): p = model(x)
        assert p.logits(x == 3).dtype == p.quality().dtype == p.h.dtype == torch.float32
        assert (p.quality() - want).abs().max() < .1 * (1 + want.abs().max())

def test_qualities_do_not_tie(low):
    "In bf16 most of 768 numbers would: the last layer works in fp32."
    x = torch.randint(0, 8, (64, 12), generator=torch.Generator().manual_seed(0))
    assert low(x).quality().unique().numel() > 700
    critic = critic_like(low, n_blocks=1).to(
        next(low.parameters()).dtype
    )  # 240 if they were rounded
    assert critic(x).quality().unique().numel() > 400
    assert not (sample(low, 'token-critic', 8, 2, critic=critic).tokens == low.mask_id).any()

# --- loading ----------------------------------------------------------------------------------

@pytest.mark.parametrize(
    'names, want',
    [
        (('bfloat16', 'bf16', torch.bfloat16), torch.bfloat16),
        (('fp16', 'half', 'torch.float16'), torch.float16),
        ((None, 'float32', 'fp32'), torch.float32),
    ],
)
def test_a_model_is_loaded_in_the_type_asked_for(lm, tmp_path, names, want):
    save(lm, tmp_path / 'm')
    torch.save(load_file(tmp_path / 'm' / 'model.safetensors'), tmp_path / 'm' / 'm.pt')
    for source, name in zip(
        (tmp_path / 'm', tmp_path / 'm' / 'model.safetensors', tmp_path / 'm' / 'm.pt'), names
    ):
        model = load(source, dtype=name)
        for a, b in zip(model.parameters(), lm.parameters(), strict=True):
            assert torch.equal(a, b.to(want))

# --- devices ----------------------------------------------------------------------------------

@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_devices():
    for name in (None, 'cpu', 'auto', torch.device('cpu')):
        assert load(device=name).device.type == 'cpu'
    for name in ('gpu', 1.5, 'cuda', torch.device('cuda', 1), 'mps'):
        with says(ValueError, f'device={str(name)!r}', "expected 'auto', 'cpu'"): load(device=name)
