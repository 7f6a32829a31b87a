"""A Lightning checkpoint is a program. We read its tensors without running it."""
import pytest
import torch

from navira.models.checkpoints import Stored, read_pickle
from helpers.checkpoints import N, REBUILD, by_hand, no_grad  # noqa: F401

def test_views_and_transposes_in_a_ckpt(tmp_path):
    torch.save(
        {
            "a": torch.arange(12.0).view(3, 4).T[1:, ::2], "b": torch.tensor(3.0),
            "c": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))},
        tmp_path / "v.pt")
    d = read_pickle(tmp_path / "v.pt")
    assert (
        torch.equal(d["a"].read(), torch.arange(12.0).view(3, 4).T[1:, ::2]) and d["b"].read() == 3
        and d["c"].read().dtype == torch.bfloat16)

@pytest.mark.parametrize(
    "offset,size,stride",
    [
        (b"K\x00", b"M\xff\xff", b"K\x01"), (b"M\xff\xff", b"K\x01", b"K\x01"), (b"K\x00", b"K\x10", b"M\xff\xff"),
        (b"J\xff\xff\xff\xff", b"K\x01", b"K\x01"), (b"K\x00", b"J\xff\xff\xff\xff", b"K\x01")],
)
def test_window_outside_the_storage(tmp_path, offset, size, stride):
    d = read_pickle(by_hand(tmp_path / "evil.ckpt", REBUILD % (offset, size, stride) + b"."))
    assert isinstance(d, Stored)
    with pytest.raises(ValueError, match="evil.ckpt"): d.read()

def test_a_tensor_larger_than_its_numbers(tmp_path):
    d = read_pickle(by_hand(tmp_path / "evil.ckpt", REBUILD % (b"K\x00", N(2**40), b"K\x00") + b"."))
    with pytest.raises(ValueError, match="evil.ckpt: a/data/0 cannot be read .a tensor of 4398046511104 bytes in 64"):
        d.read()
