"""The diffusion transformer of MDLM, with a quality head, and one forward pass with heads on
demand; grids; networks in 16 bits."""
import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from navira.models.dit import MaskedLM, mask_time
from navira.models.layers import Config
from helpers.checkpoints import (  # noqa: F401
    HEAD, TIMED, TINY, X, bare, no_grad, noisy, plain_forward)
from helpers.sample_api import says
from toys import critic_like, small_lm

EVERY = torch.ones_like(X, dtype=torch.bool)

@pytest.mark.parametrize('dtype, tol', [(torch.float64, 1e-6), (torch.float32, 1e-4)])
@pytest.mark.parametrize('config, time', [
    (HEAD, None), (TIMED, None), (TIMED, torch.tensor([.01, .7]))])
def test_same_as_a_plain_transcription(dtype, tol, config, time):
    "GIDD's network has another time for each row."
    model = noisy(config).to(dtype)
    t = mask_time(X, config).expand(2) if time is None else time
    got = model(X, time).logits(EVERY).view(2, 5, 11)
    assert got.dtype == dtype and torch.isneginf(got[..., 10]).all()
    for row in range(2):
        ref = plain_forward(bare(model), X[row:row + 1], 2, 2, t[row].item())
        assert (got[row] - ref[0])[..., :10].abs().max() < tol
    if config is TIMED:
        off = model(X, 1 - t).logits(EVERY) - model(X, t).logits(EVERY)
        assert off[:, :10].abs().max() > .01

@pytest.mark.parametrize('config', [HEAD, TIMED])
@pytest.mark.parametrize('where', [X == 10, X == 7, X < 99, X < 0])
def test_heads_are_lazy_and_a_row_does_not_depend_on_its_batch(config, where):
    model, calls = noisy(config).double(), []
    every, quality = model(X).logits(EVERY).view(2, 5, 11), model(X).quality()
    assert torch.allclose(model(X).logits(where), every[where], atol=1e-12)
    for r in range(2):
        rows = torch.arange(2) == r
        part = model(X[r:r + 1])
        assert torch.allclose(part.logits(EVERY[:1]).view(1, 5, 11), every[rows], atol=1e-12)
        for q in (part.quality(), model(X).rated(rows)):
            assert torch.allclose(q, quality[rows], atol=1e-12)
    model.quality.register_forward_hook(lambda *a: calls.append(1))
    p = model(X)
    assert p.quality() is p.quality() and len(calls) == 1

@pytest.mark.parametrize('config', [HEAD, TIMED])
def test_an_edit_of_embeddings_is_for_one_pass_of_one_thread(config):
    "With the embedding of another token it is the pass over that text, at the time of its masks"
    model, other = noisy(config).double(), X.clone()
    other[0, 0], other[1, 2] = 5, 5
    seen = []
    def edit(h):
        with ThreadPoolExecutor(1) as pool: seen.append(pool.submit(logits, X).result())
        five = model.backbone.vocab_embed.embedding[5]
        return torch.where((X != other)[..., None], five, h)
    def logits(x): return model(x).logits(EVERY)
    plain = logits(X)
    assert torch.allclose(model.embedded(X, edit).logits(EVERY), logits(other), atol=1e-12)
    assert torch.allclose(seen[0], plain) and not torch.allclose(logits(other), plain)
    with pytest.raises(ZeroDivisionError): model.embedded(X, lambda h: h / (1 // 0))
    assert torch.allclose(logits(X), plain)

def test_dropout_is_for_training_and_everything_learns():
    model = noisy()
    torch.testing.assert_close(model(X).h, model(X).h)
    model.train()
    assert not torch.allclose(model(X).h, model(X).h)
    with torch.enable_grad():
        p = model(X)
        loss = F.cross_entropy(p.logits(X == 10), torch.ones(5, dtype=torch.long))
        (loss + p.quality().sum()).backward()
    assert all(q.grad is not None and q.grad.isfinite().all() for q in model.parameters())

@pytest.mark.parametrize('x, part', [
    (torch.zeros(1, 13, dtype=torch.long), '13 positions: expected 1 to 12'),
    (torch.zeros(5, dtype=torch.long), '[5]'), (X.int(), 'int32')])
def test_ids_are_checked(x, part):
    with says(ValueError, part): noisy()(x)

@settings(max_examples=50, deadline=None)
@given(st.floats(0, .5), st.integers(1, 200))
def test_the_time_of_a_text_gives_its_share_of_masks(p, L):
    """GIDD's schedule: a share t / (1 + B sqrt(t (1 - t))) of masks at time t; more masks, a
    later time."""
    config = Config(vocab_size=11, hidden_dim=16, n_heads=2, p_uniform=p)
    x = torch.where(torch.arange(L + 1)[:, None] > torch.arange(L), 10, 0)         # 0 to L masks
    t, B = mask_time(x, config).double(), 2 * p / (1 - p)
    m = t / (1 + B * (t * (1 - t)).sqrt())
    assert (t.diff() >= 0).all()
    assert t[0] == pytest.approx(1e-4) and t[-1] == pytest.approx(1 - 1e-4)
    inside = (t > 1.1e-4) & (t < 1 - 1.1e-4)
    assert (t[inside].diff() > 0).all() and (inside.sum() > L / 4 or L < 5)
    assert ((m - torch.arange(L + 1) / L)[inside].abs() < 1e-4).all()

def test_a_network_of_grids_does_not_know_the_order_of_its_cells():
    "It knows a cell by its units alone: if two like rows change places, so do the outputs."
    torch.manual_seed(0)
    sizes = dict(vocab_size=5, model_length=16, hidden_dim=16, cond_dim=4, n_blocks=2, n_heads=2)
    model = MaskedLM(Config(**sizes, boxes=(2, 2))).double().eval()
    for p in model.parameters(): p.copy_(.3 * torch.randn(p.shape))
    rows = model.backbone.place.units[0].embedding
    rows[1] = rows[0]
    x, every = torch.randint(0, 5, (3, 16)), torch.ones(3, 16, dtype=torch.bool)
    def swapped(v): return torch.cat([v[:, 4:8], v[:, :4], v[:, 8:]], 1)
    a, b = (model(v).logits(every).view(3, 16, 5)[..., :4] for v in (x, swapped(x)))
    assert torch.allclose(swapped(a), b, atol=1e-12)
    with says(ValueError, '15 positions: expected 16 to 16'): model(x[:, :15])

# and by how much their logits may be off, which are as large as 4
LOW = {torch.bfloat16: .06, torch.float16: .008}

@pytest.mark.parametrize('dtype', LOW)
def test_in_16_bits_logits_and_qualities_are_float32_and_near_those_in_32(dtype):
    "Qualities do not tie: the last layer works in float32 (in bf16 most of 768 numbers would)."
    lm = small_lm(seed=3)
    low, off = copy.deepcopy(lm).to(dtype), LOW[dtype]
    x = torch.randint(0, 11, (64, 12), generator=torch.Generator().manual_seed(0))
    for where in (x == lm.mask_id, x == 3, x >= 0):
        want, got = lm(x).logits(where), low(x).logits(where)
        assert got.dtype == torch.float32 and torch.equal(got.isneginf(), want.isneginf())
        assert 0 < (got - want)[want.isfinite()].abs().max() < 2 * off
    want, got = lm(x).quality(), low(x).quality()
    assert got.dtype == torch.float32 and 0 < (got - want).abs().max() < 2 * off
    assert got.unique().numel() > 700
    critic = critic_like(low, n_blocks=1).to(dtype)                 # 240 if they were rounded
    assert critic(x).quality().unique().numel() > 400
    for model in (lm, low):
        with torch.autocast('cpu', torch.bfloat16): p = model(x)
        assert p.logits(x == 3).dtype == p.quality().dtype == p.h.dtype == torch.float32
        assert (p.quality() - want).abs().max() < .1 * (1 + want.abs().max())
