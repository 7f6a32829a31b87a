"""The diffusion transformer of MDLM, with a quality head, and one forward pass with heads on demand."""
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from navira.models.layers import Config
from navira.models.dit import QualityHead, DiT, mask_time, n_params, with_head
from helpers.checkpoints import TIMED, TINY, X, bare, no_grad, noisy, plain_forward, words  # noqa: F401

@pytest.mark.parametrize("dtype,tol", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_same_as_plain_transcription(dtype, tol):
    model = noisy().to(dtype)
    model.backbone.rotary_emb.inv_freq = (10000. ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)).to(dtype)
    ref, p = plain_forward(bare(model), X, 2, 2), model(X)
    got = p.logits(torch.ones_like(X, dtype=torch.bool)).view(2, 5, 11)
    assert got.dtype == dtype and torch.isneginf(got[..., 10]).all()
    assert (got - ref)[..., :10].abs().max() < tol

@pytest.mark.parametrize("where", [X == 10, X == 7, X < 99, X < 0])
def test_lazy_logits_are_rows_of_the_full_ones(where):
    p = noisy().double()(X)
    every = p.logits(torch.ones_like(X, dtype=torch.bool)).view(2, 5, 11)
    assert torch.allclose(p.logits(where), every[where], atol=1e-12)

def test_rows_do_not_depend_on_the_batch():
    model = noisy().double()
    for r in range(2):
        assert torch.allclose(model(X[r:r + 1]).quality(), model(X).quality()[r:r + 1], atol=1e-12)

def test_quality_runs_once_and_needs_a_head():
    model, calls = noisy(), []
    model.quality.register_forward_hook(lambda *a: calls.append(1))
    p = model(X)
    assert p.quality() is p.quality() and len(calls) == 1 and p.quality().shape == X.shape
    with pytest.raises(ValueError, match="navira finetune"): noisy(TINY)(X).quality()
    assert not with_head(noisy(TINY))(X).quality().any()

def test_parameter_counts_of_the_published_sizes():
    with torch.device("meta"):
        assert (n_params(DiT(Config())), n_params(QualityHead(Config()))) == (169_627_218, 7_877_377)

def test_autocast_keeps_residual_and_scores_in_fp32():
    model = noisy()
    with torch.autocast("cpu", torch.bfloat16): p = model(X)
    assert p.h.dtype == p.quality().dtype == p.logits(X == 10).dtype == torch.float32
    ref = model(X)
    assert (p.quality() - ref.quality()).abs().max() < .1 * (1 + ref.quality().abs().max())
    assert not torch.equal(p.h, ref.h)

def test_dropout_in_training_only():
    model = noisy()
    assert torch.equal(model(X).h, model(X).h)
    model.train()
    assert not torch.equal(model(X).h, model(X).h)

def test_differentiable():
    model = noisy()
    with torch.enable_grad():
        p = model(X)
        (F.cross_entropy(p.logits(X == 10), torch.ones(5, dtype=torch.long)) + p.quality().sum()).backward()
    assert all(q.grad is not None and q.grad.isfinite().all() for q in model.parameters())

@pytest.mark.parametrize(
    "x,words",
    [
        (torch.zeros(1, 13, dtype=torch.long), "13 positions"), (torch.zeros(1, 0, dtype=torch.long), "0 positions"),
        (torch.zeros(5, dtype=torch.long), "[5]"), (torch.zeros(1, 5), "float32")],
)
def test_input_is_checked(x, words):
    with pytest.raises(ValueError) as e: noisy()(x)
    assert words in str(e.value)

# a network that looks at the time

@pytest.mark.parametrize("dtype,tol", [(torch.float64, 1e-6), (torch.float32, 1e-4)])     # a time is an fp32 number
@pytest.mark.parametrize("time", [torch.tensor([.01, .7]), None])
def test_each_row_has_its_own_time(dtype, tol, time):
    model = noisy(TIMED).to(dtype)
    model.backbone.rotary_emb.inv_freq = (10000. ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)).to(dtype)
    t = mask_time(X, TIMED) if time is None else time
    got = model(X, time).logits(torch.ones_like(X, dtype=torch.bool)).view(2, 5, 11)
    for row in range(2):
        ref = plain_forward(bare(model), X[row:row + 1], 2, 2, t[row].item())
        assert (got[row] - ref[0])[..., :10].abs().max() < tol
    assert (model(X, 1 - t).logits(X < 99) - model(X, t).logits(X < 99))[:, :10].abs().max() > .01

@pytest.mark.parametrize("where", [X == 10, X == 7, X < 99, X < 0])
def test_heads_of_a_timed_network_are_lazy_too(where):
    model = noisy(TIMED).double()
    p = model(X)
    every = p.logits(torch.ones_like(X, dtype=torch.bool)).view(2, 5, 11)
    assert torch.allclose(model(X).logits(where), every[where], atol=1e-12)
    for r in range(2):
        rows, alone = torch.arange(2) == r, model(X[r:r + 1])
        part = model(X).only(rows)
        assert torch.allclose(part.logits(X[rows] < 99).view(1, 5, 11), every[rows], atol=1e-12)
        assert torch.allclose(part.quality(), alone.quality(), atol=1e-12)
        assert torch.allclose(alone.logits(X[rows] < 99).view(1, 5, 11), every[rows], atol=1e-12)

@settings(max_examples=100, deadline=None)
@given(st.floats(0, .5), st.integers(1, 200))
def test_the_time_of_a_text_gives_its_share_of_masks(p, L):
    "GIDD's schedule: a share t / (1 + B sqrt(t (1 - t))) of masks at time t; more masks, a later time."
    config = Config(vocab_size=11, hidden_dim=16, n_heads=2, p_uniform=p)
    x = torch.where(torch.arange(L + 1)[:, None] > torch.arange(L), 10, 0)                  # 0 to L masks
    t, B = mask_time(x, config).double(), 2 * p / (1 - p)
    m = t / (1 + B * (t * (1 - t)).sqrt())
    assert (t.diff() >= 0).all() and t[0] == pytest.approx(1e-4) and t[-1] == pytest.approx(1 - 1e-4)
    inside = (t > 1.1e-4) & (t < 1 - 1.1e-4)
    assert (t[inside].diff() > 0).all() and (inside.sum() > L / 4 or L < 5)
    assert ((m - torch.arange(L + 1) / L)[inside].abs() < 1e-4).all()

def test_a_time_that_is_of_no_use():
    with pytest.raises(ValueError, match="looks at it"): noisy()(X, torch.tensor([.1, .2]))
    with pytest.raises(ValueError, match=r"time \[1\]: expected \[2\]"): noisy(TIMED)(X, torch.tensor([.1]))
    for p in (1., -.1, float("nan"), "x"):
        with pytest.raises(ValueError, match="p_uniform=.*expected 0 <= p_uniform < 1"): Config(p_uniform=p)
    with pytest.raises(ValueError, match="p_uniform"): Config(model_length=16, boxes=(2, 2), p_uniform=.1)
