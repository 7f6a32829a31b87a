"""Random numbers by counter: one stream for each seed, sample, step, purpose and position."""
import hashlib, math, re

import numpy as np
import pytest
import torch

from navira.base.noise import AHEAD, Noise

ONES = 0xFFFFFFFF


@pytest.mark.parametrize('bits, want', [(0, 2.**-53), (ONES, 1 - 2.**-53)])
def test_uniforms_stay_inside_the_open_interval(monkeypatch, bits, want):
    drawn = torch.full((1, AHEAD, 1, 1), bits)
    monkeypatch.setattr('navira.base.noise.philox', lambda *a: (drawn,) * 4)
    u = Noise(0, torch.arange(1)).uniform(0, 'token', 1).item()
    assert 0 < u < 1 and u == pytest.approx(want)
    assert math.isfinite(-math.log(-math.log(u)))                          # a Gumbel too

def test_every_purpose_has_its_own_numbers(root):
    "A purpose is known by 32 bits of its hash, so no two of the library's may share them"
    text = ''.join(p.read_text() for p in (root/'navira').rglob('*.py'))
    words = set(re.findall(r'''uniform\((?:[\w.]+,\s*)?['"]([^'"]+)['"]''', text))
    words |= set(re.findall(r"purpose: str ?= ?'(\w+)'", text))
    assert words >= {'token', 'order', 'ties', 'count', 'gumbel', 'flip', 'remask'}
    hashes = {hashlib.blake2b(w.encode(), digest_size=4).digest() for w in words}
    assert len(hashes) == len(words)
    noise = Noise(7, torch.arange(300))
    u = torch.stack([noise.uniform(i, w, 40).flatten() for w in sorted(words) for i in (0, 1)])
    r = np.corrcoef(u.numpy()) - np.eye(len(u))
    assert abs(r).max() < 5 / math.sqrt(u.shape[1]) and len(u.unique()) == u.numel()

