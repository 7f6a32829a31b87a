"""MAUVE: how close is the set of samples to a set of human texts?"""
import math, sys, types

import numpy as np
import pytest
import torch

from navira.evaluation.mauve import features, grouped_mauve, mauve
from helpers.metrics import EOS, cases, ref  # noqa: F401

def hidden(ref, text):
    ids = torch.tensor([ref.tokenizer(text)['input_ids'] or [ref.eos_id]])
    with torch.no_grad(): return ref.model(ids, output_hidden_states=True).hidden_states[-1][0, -1]

def test_features_are_the_last_hidden_states(ref):
    want = torch.stack([hidden(ref, t) for t in cases])
    for kw in {}, dict(batch_tokens=1), dict(batch_tokens=300):
        np.testing.assert_allclose(features(ref, cases, **kw), want, rtol=1e-4, atol=1e-5)
    last = hidden(ref, f'w1 w2 {EOS}')[None]
    for text, eos in (f'w1 w2 {EOS} {EOS} {EOS}', 'once'), (f'w1 w2 {EOS} w3', 'stop'):
        np.testing.assert_allclose(features(ref, [text], eos=eos), last, rtol=1e-4, atol=1e-5)

def test_mauve_is_called_with_real_text_first(monkeypatch):
    seen = {}
    def compute(**kw):
        seen.update(kw)
        return types.SimpleNamespace(mauve=.25)
    monkeypatch.setitem(sys.modules, 'mauve',
                        types.SimpleNamespace(compute_mauve=compute, __spec__=object()))
    p, q = torch.zeros(4, 3), torch.ones(5, 3)
    assert mauve(p, q) == .25
    assert seen['p_features'].tolist() == p.tolist() and seen['q_features'].tolist() == q.tolist()

x = np.zeros((60, 3))

@pytest.mark.parametrize('call, what', [
    (lambda: mauve(x, x[:, :2]), 'features of 3 and 2'),
    *[(lambda p=p: mauve(p, x), 'of shape') for p in (x[0], x[:0], x[None], 5.)],
    (lambda: mauve(x, x + math.inf), 'not finite'),
    (lambda: grouped_mauve(x[:9], x), 'at least 30')])
def test_mauve_says_what_is_wrong(call, what):
    with pytest.raises(ValueError, match=what): call()

def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr('navira.base.checks.find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r"'mauve-text'.*pip install \"\.\[mauve\]\""): mauve(x, x)

def test_mauve_known_answers():
    pytest.importorskip('mauve')
    cloud = np.random.default_rng(0).standard_normal((100, 5))
    e = 100 * np.eye(5)
    assert mauve(cloud, cloud) == pytest.approx(1)
    assert mauve(cloud + e[0], cloud + e[1]) == pytest.approx(1 / 252, abs=1e-3)
    half = np.concatenate([cloud[:50] + e[0], cloud[50:] + e[1]])
    assert .01 < mauve(half, cloud + e[0]) < .99
