"""The diffusion transformer of MDLM, with a quality head, and one forward pass with heads on
demand."""
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from navira.models.dit import mask_time, with_head
from navira.models.layers import Config
from helpers.checkpoints import (  # noqa: F401
    HEAD, TIMED, TINY, X, bare, no_grad, noisy, plain_forward)
from toys import small_lm

EVERY = torch.ones_like(X, dtype=torch.bool)

@pytest.mark.parametrize('dtype, tol', [(torch.float64, 1e-6), (torch.float32, 1e-4)])
@pytest.mark.parametrize(
    'config, time', [(HEAD, None), (TIMED, None), (TIMED, torch.tensor([0.01, 0.7]))]
)
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
    model = noisy(config).double()
    every, quality = model(X).logits(EVERY).view(2, 5, 11), model(X).quality()
    assert torch.allclose(model(X).logits(where), every[where], atol=1e-12)
    for r in range(2):
        rows = torch.arange(2) == r
        part = model(X[r:r + 1])
        assert torch.allclose(part.logits(EVERY[:1]).view(1, 5, 11), every[rows], atol=1e-12)
        for q in (part.quality(), model(X).rated(rows)):
            assert torch.allclose(q, quality[rows], atol=1e-12)

def test_attention_that_is_read_is_that_of_the_last_four_blocks(monkeypatch):
    "As the fused kernel is given queries and keys; nothing is kept of a pass that is not asked"
    model, maps = small_lm(2, n_blocks=5), []
    fused = F.scaled_dot_product_attention
    def seen(q, k, v, mask=None):
        maps.append((q @ k.mT / q.shape[-1] ** .5).softmax(-1).mean(1))
        return fused(q, k, v, mask)
    monkeypatch.setattr(F, 'scaled_dot_product_attention', seen)
    x = torch.randint(0, 11, (3, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(): p, read = model.attending(x)
    assert len(maps) == 5
    torch.testing.assert_close(read, torch.stack(maps[1:]).mean(0))
    torch.testing.assert_close(p.h, model(x).h)

def test_the_head_runs_once_and_may_be_absent():
    model, calls = noisy(), []
    model.quality.register_forward_hook(lambda *a: calls.append(1))
    p = model(X)
    assert p.quality() is p.quality() and len(calls) == 1 and p.quality().shape == X.shape
    with pytest.raises(ValueError, match='navira finetune'): noisy(TINY)(X).quality()
    assert not with_head(noisy(TINY))(X).quality().any() and with_head(model, None).quality is None

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

@pytest.mark.parametrize(
    'x, words',
    [
        (torch.zeros(1, 13, dtype=torch.long), '13 positions: expected 1 to 12'),
        (torch.zeros(5, dtype=torch.long), r'\[5\]'),
    ],
)
def test_ids_are_checked(x, words):
    with pytest.raises(ValueError, match=words): noisy()(x)

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
