"""The rate of learning over a run, and the average of the weights."""
import itertools

import pytest
import torch
from torch import nn

from navira.training.loop import Ema, cosine
from helpers.training import one_thread  # noqa: F401

def test_cosine():
    assert cosine(0, 100, 10, .1) == pytest.approx(.1) and cosine(100, 100, 10, .1) == pytest.approx(.1)
    assert cosine(0, 10, 0, 1.) == 1. == cosine(9, 10, 0, 1.)
    rates = [cosine(s, 100, 10, .1) for s in range(101)]
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))

def test_ema():
    w = nn.Linear(3, 2)
    ema, expect = Ema(w, .5), {n: p.detach().clone() for n, p in w.named_parameters()}
    for s in range(1, 6):
        with torch.no_grad():
            for p in w.parameters(): p.add_(torch.randn_like(p))
        ema.update(s)
        d = min(.5, (1 + s) / (10 + s))
        expect = {n: d * expect[n] + (1 - d) * p.detach() for n, p in w.named_parameters()}
    for n in expect: torch.testing.assert_close(ema.average[n], expect[n])
    raw = w.weight.detach().clone()
    with ema.applied() as m:
        assert (
            not m.training and torch.equal(w.weight, ema.module.weight) and torch.allclose(w.weight, expect['weight']))
    assert torch.equal(w.weight, raw) and w.training
