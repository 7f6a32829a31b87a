"""MAUVE: how close is the set of samples to a set of human texts?"""
from dataclasses import replace

import numpy as np
import torch

from navira.evaluation.mauve import features
from helpers.metrics import cases, ref  # noqa: F401

def hidden(ref, text):
    ids = torch.tensor([ref.tokenizer(text)['input_ids'] or [ref.eos_id]])
    with torch.no_grad(): return ref.model(ids, output_hidden_states=True).hidden_states[-1][0, -1]

def test_features_are_the_last_hidden_states(ref):
    want = torch.stack([hidden(ref, t) for t in cases])
    for most in None, 1, 300:
        got = features(replace(ref, batch_tokens=most), cases)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
