"""The diffusion transformer of MDLM, with a quality head, and one forward pass with heads on demand."""
import pytest
import torch
import torch.nn.functional as F

from navira.models.layers import Config
from navira.models.denoiser import QualityHead, DiT, n_params, with_head
from helpers.checkpoints import TINY, X, bare, no_grad, noisy, plain_forward, words  # noqa: F401

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
