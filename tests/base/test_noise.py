"""Random numbers by counter: known answers, and one stream for each seed, sample, step, purpose and position."""
import hashlib, math, re

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as hs
from scipy import stats

from navira.base.noise import Noise, philox

def philox_plainly(counter, key):
    "Random123's philox4x32-10, with Python's integers"
    (a, b, c, d), (k, l), m = counter, key, 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q & m, (p >> 32) ^ d ^ l, p & m
        k, l = (k + 0x9E3779B9) & m, (l + 0xBB67AE85) & m
    return a, b, c, d

ONES = 0xFFFFFFFF
@pytest.mark.parametrize(
    'counter, key, want',
    [
        ([0] * 4, (0, 0), '6627e8d5 e169c58d bc57ac4c 9b00dbd8'),
        ([ONES] * 4, (ONES, ONES), '408f276d 41c83b0e a20bc7c6 6d5451fd'),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            'd16cfe09 94fdcceb 5001e420 24126ea1',
        ),
    ],
)
def test_philox_known_answers(counter, key, want):
    assert (
        ' '.join(f'{int(v):08x}' for v in philox(counter, key))
        == want
        == ' '.join(f'{v:08x}' for v in philox_plainly(counter, key))
    )

word = hs.integers(0, ONES)
@given(hs.tuples(word, word, word, word), hs.tuples(word, word))
def test_philox_is_the_plain_one(counter, key):
    assert tuple(map(int, philox(counter, key))) == philox_plainly(counter, key)

def test_uniforms_stay_inside_the_open_interval(monkeypatch):
    for w, want in ((0, 2.**-53), (ONES, 1 - 2.**-53)):
        monkeypatch.setattr('navira.base.noise.philox', lambda *a: (torch.tensor(w),) * 4)
        u = Noise(0, torch.arange(1)).uniform(0, 'token', 1).item()
        assert 0 < u < 1 and u == pytest.approx(want)
        assert math.isfinite(-math.log(-math.log(u)))                          # a Gumbel too

def test_every_purpose_has_its_own_numbers(root):
    "A purpose is told by 32 bits of its hash, so no two of the library's may share them"
    text = ''.join(p.read_text() for p in (root / 'navira').rglob('*.py'))
    words = set(re.findall(r"""uniform\((?:[\w.]+,\s*)?['"]([^'"]+)['"]""", text)) | set(
        re.findall(r"purpose: str = '(\w+)'", text)
    )
    assert words >= {'token', 'order', 'ties', 'count', 'gumbel', 'flip', 'remask'}
    assert len({hashlib.blake2b(w.encode(), digest_size=4).digest() for w in words}) == len(words)
    noise = Noise(7, torch.arange(300))
    u = torch.stack([noise.uniform(i, w, 40).flatten() for w in sorted(words) for i in (0, 1)])
    r = np.corrcoef(u.numpy()) - np.eye(len(u))
    assert abs(r).max() < 5 / math.sqrt(u.shape[1]) and len(u.unique()) == u.numel()
    assert all(stats.kstest(v.numpy(), 'uniform').pvalue > 1e-4 for v in u)

@pytest.mark.parametrize('seed', [0, -1, 2**31, 2**32, 2**63, 2**64 - 1, -2**63])
def test_any_seed(seed):
    u = Noise(seed, torch.arange(200)).uniform(3, 'token', 50)
    assert u.shape == (200, 50) and u.dtype == torch.float64 and (u > 0).all() and (u < 1).all()
    assert stats.kstest(u.flatten().numpy(), 'uniform').pvalue > 1e-4
    assert not (u == Noise(seed + 1, torch.arange(200)).uniform(3, 'token', 50)).any()
    assert torch.equal(u, Noise(seed, torch.arange(200)).uniform(3, 'token', 50))

def test_numbers_follow_the_sample_and_the_position():
    u = Noise(5, torch.arange(10)).uniform(2, 'order', 30)
    assert torch.equal(Noise(5, torch.tensor([7, 2])).uniform(2, 'order', 12), u[[7, 2], :12])
    assert torch.equal(Noise(5, torch.arange(10))[torch.arange(10) % 3 == 1].uniform(2, 'order', 30), u[1::3])
