"""Checkpoints in MDLM's layout, from disk: whole, damaged, foreign and malicious; and the network against a plain
transcription."""
import contextlib, math
from dataclasses import replace

import pytest
import torch

from navira.models.load import save
from helpers.checkpoints import HEAD, lightning, no_grad, noisy, refused, small_tokenizer, words  # noqa: F401

@contextlib.contextmanager
def full_disk(size):
    "No file may grow beyond `size` bytes: the error of a full disk, with another number."
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)

@pytest.mark.parametrize("dim,words,name", [(64, 0, "model.safetensors"), (16, 1000, "tokenizer.json")])
def test_save_on_a_full_disk_says_so_and_leaves_the_old_model_whole(tmp_path, dim, words, name):
    old, new = noisy(seed=1), noisy(replace(HEAD, hidden_dim=dim), seed=2)
    old.tokenizer, new.tokenizer = small_tokenizer(), small_tokenizer()
    new.tokenizer.add_tokens([f"word {i}" for i in range(words)])
    save(old, tmp_path / "m")
    before = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}
    with full_disk(30_000), pytest.raises(OSError) as e: save(new, tmp_path / "m")
    assert str(e.value).startswith(f"{tmp_path / 'm' / name}: no space left") and "make room" in str(e.value)
    assert {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()} == before

def test_save_where_it_cannot(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"): save(noisy(), tmp_path / "file" / "m")

# --- weights that are no numbers --------------------------------------------------------------------------------------

@pytest.mark.parametrize("value,word", [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")])
@pytest.mark.parametrize("name", ["backbone.output_layer.linear.bias", "quality.block.mlp.0.weight"])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused(tmp_path, value, word, name, kept):
    model = noisy()
    dict(model.named_parameters())[name].flatten()[-1] = value
    save(model, tmp_path / "m", kept)
    refused(tmp_path / "m" / "model.safetensors", name, word, "expected finite")
    refused(tmp_path / "m", name, word, dtype="bf16")
    refused(lightning(tmp_path / "m.ckpt", model, list(model.parameters())), name, word)
