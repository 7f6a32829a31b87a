"""Checkpoints, the log, and who may write: what lets a run be stopped and resumed."""
import random

import pytest
import torch

from navira.models.load import load
from navira.training.runs import read_checkpoint, save_checkpoint
from helpers.training import begun, copied, home, lines, one_thread, trained  # noqa: F401

# checkpoints, kill and resume

def test_damaged_checkpoint(tmp_path):
    for i in range(2): save_checkpoint(tmp_path, dict(step=i, w=torch.full((500,), float(i))))
    whole = (tmp_path / 'last.pt').read_bytes()
    for bad in (b'', whole[:10], whole[:len(whole) // 2], b'\0' * 100 + whole[100:], b'hello'):
        (tmp_path / 'last.pt').write_bytes(bad)
        with pytest.raises(ValueError, match='last.pt: damaged checkpoint .* previous.pt'): read_checkpoint(tmp_path)
    (tmp_path / 'last.pt').unlink()                            # also what a kill between the two moves leaves
    assert read_checkpoint(tmp_path)['step'] == 0
    assert read_checkpoint(tmp_path / 'none') is None

def test_checkpoint_has_one_group_in_parameter_order(trained):
    state = read_checkpoint(trained)
    model = load(trained / 'model')
    params = state['optimizer']['param_groups']
    assert len(params) == 1 and len(params[0]['params']) == len(list(model.backbone.parameters()))
    for i, p in enumerate(model.backbone.parameters()):
        assert state['optimizer']['state'][i]['exp_avg'].shape == p.shape

def test_a_single_flipped_bit(copied):
    out, cfg = copied
    whole, rng = (out / 'last.pt').read_bytes(), random.Random(0)
    state, refused = read_checkpoint(out), 0
    for _ in range(60):
        i = rng.randrange(len(whole))
        (out / 'last.pt').write_bytes(whole[:i] + bytes([whole[i] ^ 1 << rng.randrange(8)]) + whole[i + 1:])
        try: got = read_checkpoint(out)
        except ValueError as e: refused += 1; assert 'last.pt: damaged checkpoint' in str(e); continue
        assert str(got) == str(state)                          # in the padding: nothing is lost
    assert refused >= 15, refused
