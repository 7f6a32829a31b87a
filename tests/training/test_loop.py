"""Training: corpora, packing, settings, kill and resume, the PRISM objective, several processes."""
import dataclasses, itertools, json, math

import numpy as np
import pytest
import torch
from torch import nn

from navira.training.settings import FinetuneConfig, TrainConfig
from navira.training.loop import Ema, cosine
from navira.training.bound import evaluate_nelbo
from navira.training.critic import CriticConfig
from helpers.training import ROOT, one_thread, tiny_model  # noqa: F401

# pieces

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

def test_nelbo_of_a_uniform_model():
    model = tiny_model().eval()
    e = evaluate_nelbo(model, np.random.default_rng(0).integers(0, 11, (500, 10)))
    assert abs(e.value - math.log(11)) < 3 * e.se and e.n == 500

# the embedded model

def test_the_recipe_of_the_embedded_model_can_be_given():
    "What its records say, as settings, and as the commands in notebook 10 give them."
    stages = [
        s for name in ('training', 'critic-training')
        for s in json.loads((ROOT / 'navira' / 'weights' / f'{name}.json').read_text())['stages']]
    base = dict(data='classics', out='run', precision='fp32')
    said = dict(
        pretrain=TrainConfig(tokens=76_000_000, **base),
        head=FinetuneConfig(head_steps=480, joint_steps=320, warmup=50, ema=0.99, **base),
        critic=CriticConfig(batch_size=32, **base))
    for s in stages:
        kind = dict(pretrain=TrainConfig, critic=CriticConfig).get(s['name'], FinetuneConfig)
        cfg = kind(**s['recipe'] | dict(data='classics', out='run'))
        if s['name'] in said:
            differ = {
                f.name for f in dataclasses.fields(cfg) if getattr(cfg, f.name) != getattr(said[s['name']], f.name)}
            # lr: the record's is the stage's, which is `head_lr`
            assert differ <= {'checkpoint_every', 'eval_every', 'lr'}, differ
    assert said['pretrain'].steps == 9277 and [cosine(i, 9277, 300, 0.05) for i in (0, 299)] == pytest.approx(
        [1 / 300, 1.0], abs=0.01)
