"""MAUVE: how close is the set of samples to a set of human texts?"""
import sys, types

import numpy as np
import torch

from navira.evaluation.mauve import features, mauve
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
