"""The diffusion transformer of MDLM with a quality head: rows and threads beside each other, and
networks in 16 bits. Its numbers are those of published code (nbs/models/families)."""
import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers.checkpoints import no_grad, noisy, TIMED  # noqa: F401
from helpers.sample_api import says
from toys import critic_like, small_lm

X = torch.tensor([[1, 10, 3, 10, 0], [10, 10, 7, 2, 10]])
EVERY = torch.ones_like(X, dtype=torch.bool)

def test_a_row_does_not_depend_on_its_batch_and_quality_is_computed_once():
    "Each row is at the time of its own masks."
    model, calls = noisy(TIMED).double(), []
    every, quality = model(X).logits(EVERY), model(X).quality()
    model.quality.register_forward_hook(lambda *a: calls.append(1))
    for r in range(2):
        part = model(X[r:r + 1])
        torch.testing.assert_close(part.logits(EVERY[:1]), every.view(2, 5, 11)[r])
        torch.testing.assert_close(part.quality(), quality[r:r + 1])
        assert part.quality() is part.quality() and len(calls) == r + 1

def test_an_edit_of_embeddings_is_for_one_pass_of_one_thread():
    "With the embedding of another token it is the pass over that text, at the time of its masks"
    model, other = noisy(TIMED).double(), X.clone()
    other[0, 0], other[1, 2] = 5, 5
    seen = []
    def logits(x): return model(x).logits(EVERY)
    def edit(h):
        with ThreadPoolExecutor(1) as pool: seen.append(pool.submit(logits, X).result())
        five = model.backbone.vocab_embed.embedding[5]
        return torch.where((X != other)[..., None], five, h)
    plain = logits(X)
    torch.testing.assert_close(model.embedded(X, edit).logits(EVERY), logits(other))
    torch.testing.assert_close(seen[0], plain)
    with pytest.raises(ZeroDivisionError): model.embedded(X, lambda h: h / (1 // 0))
    torch.testing.assert_close(logits(X), plain)

@pytest.mark.parametrize('x, part', [(X[0], '[5]'), (X.int(), 'int32')])
def test_ids_are_checked(x, part):
    with says(ValueError, part): noisy()(x)

# by how much their logits may be off, which are as large as 4
@pytest.mark.parametrize('dtype, off', [(torch.bfloat16, .12), (torch.float16, .016)])
def test_in_16_bits_logits_and_qualities_are_float32_and_near_those_in_32(dtype, off):
    "Qualities do not tie: the last layer works in float32 (in bf16 most of 768 numbers would)."
    lm = small_lm(seed=3)
    low = copy.deepcopy(lm).to(dtype)
    x = torch.randint(0, 11, (64, 12), generator=torch.Generator().manual_seed(0))
    for want, got in ((lm(x).logits(x == 3)[:, :10], low(x).logits(x == 3)[:, :10]),
                      (lm(x).quality(), low(x).quality())):
        assert got.dtype == torch.float32 and 0 < (got - want).abs().max() < off
    assert low(x).quality().unique().numel() > 700
    critic = critic_like(low, n_blocks=1).to(dtype)                 # 240 if they were rounded
    assert critic(x).quality().unique().numel() > 400
