"""MAUVE: how close is the set of samples to a set of human texts?"""
import math, sys, types

import numpy as np
import pytest
import torch

from navira.evaluation.mauve import features, mauve
from helpers.metrics import EOS, cases, ref  # noqa: F401

def hidden(ref, text):
    ids = ref.tokenizer(text)['input_ids'] or [ref.eos_id]
    with torch.no_grad(): return ref.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]

def test_features_are_the_last_hidden_states(ref):
    x = features(ref, cases)
    assert x.shape == (12, 32) and x.dtype == torch.float32
    np.testing.assert_allclose(x, torch.stack([hidden(ref, t) for t in cases]), rtol=1e-4, atol=1e-5)
    last = hidden(ref, f'w1 w2 {EOS}')
    np.testing.assert_allclose(features(ref, [f'w1 w2 {EOS} {EOS} {EOS}'])[0], last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(features(ref, [f'w1 w2 {EOS} w3'], eos='stop')[0], last, rtol=1e-4, atol=1e-5)
    for kw in dict(batch_tokens=1), dict(batch_tokens=300):
        np.testing.assert_allclose(features(ref, cases, **kw), x, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match='list of strings'): features(ref, 'w1')
def test_mauve_is_called_with_real_text_first(monkeypatch):
    seen = {}
    def compute(**kw): seen.update(kw); return types.SimpleNamespace(mauve=.25, mauve_star=.75)
    monkeypatch.setitem(sys.modules, 'mauve', types.SimpleNamespace(compute_mauve=compute, __spec__=object()))
    p, q = torch.zeros(4, 3), torch.ones(5, 3)
    assert mauve(p, q) == .25 and mauve(p, q, buckets=3, scaling=2., star=True, seed=7) == .75
    assert seen['p_features'].tolist() == p.tolist() and seen['q_features'].tolist() == q.tolist()
    assert (seen['num_buckets'], seen['mauve_scaling_factor'], seen['seed']) == (3, 2., 7)

def test_mauve_says_what_is_wrong(monkeypatch):
    x = np.zeros((4, 3))
    for a, b, kw, what in [
        (x, x[:, :2], {}, 'features of 3 and 2'),
        (x[0], x, {}, r'p has shape \(3,\)'),
        (x, x[:1], {}, 'q has shape'),
        (x, x + math.inf, {}, 'q: text 0'),
        (x, x, dict(buckets=9), 'at most the 8'),
        (x, x, dict(buckets=1), 'buckets=1'),
    ]:
        with pytest.raises(ValueError, match=what):
            mauve(a, b, **kw)
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r"'mauve-text'.*pip install \"\.\[mauve\]\""): mauve(x, x)

def test_mauve_known_answers():
    pytest.importorskip('mauve')
    cloud = np.random.default_rng(0).standard_normal((100, 5)); e = 100 * np.eye(5)
    assert mauve(cloud, cloud) == pytest.approx(1)
    assert mauve(cloud + e[0], cloud + e[1]) == pytest.approx(1 / 252, abs=1e-3)
    half = np.concatenate([cloud[:50] + e[0], cloud[50:] + e[1]])
    assert .01 < mauve(half, cloud + e[0]) < .99
