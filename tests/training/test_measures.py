"""The bound of a model whose entropy is known; AUROC, and what is corrected."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.training.measures import (
    auroc, auroc_interval, correct_fills, evaluate_nelbo, judge_draws)
from helpers.training import moved, one_thread, tiny_model  # noqa: F401

def test_the_bound_of_a_uniform_model():
    e = evaluate_nelbo(tiny_model().eval(), np.random.default_rng(0).integers(0, 11, (500, 10)))
    assert abs(e['value'] - math.log(11)) < 3 * e['se'] and e['n'] == 500

@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs(pairs):
    s, r = (np.array(a) for a in zip(*pairs))
    if r.all() or not r.any():
        assert math.isnan(auroc(s, r))
        return
    wins = [(a > b) + .5 * (a == b) for a in s[r] for b in s[~r]]
    assert auroc(s, r) == pytest.approx(np.mean(wins))

def test_an_interval_is_wider_for_clustered_tokens():
    # eight copies of each token
    rng, rows = np.random.default_rng(0), np.repeat(np.arange(200), 8)
    right = np.repeat(rng.random(200) < .5, 8)
    score = right + np.repeat(rng.normal(size=200), 8)
    wide, narrow = (np.diff(auroc_interval(score, right, r, n=300))[0]
                    for r in (rows, np.arange(1600)))
    assert wide > 2 * narrow

def test_what_is_judged_is_drawn_at_masks_and_scored_in_its_text():
    model, held = moved(tiny_model()).eval(), np.random.default_rng(0).integers(0, 11, (40, 10))
    asked = []
    hook = model.register_forward_pre_hook(lambda m, args: asked.append(args[0]))
    q = judge_draws(model, held, fill=3, batch_size=8)
    hook.remove()
    early, y = (torch.cat(asked[k::2]) for k in (0, 1))
    n = q.groupby('row').size()
    masks = (early == model.mask_id).sum(1)
    assert (n <= 3).all() and all(n.get(i, 0) == min(3, masks[i]) for i in range(40))
    assert q.drawn.between(0, 1).all()
    right = (y == torch.from_numpy(held)) & (early == model.mask_id)
    assert all(q[q.row == i].right.sum() <= right[i].sum() for i in range(40))

def test_the_second_look_is_at_the_models_own_fill():
    "Masks filled by the argmax, then the argmax everywhere: counted a row at a time."
    model, held = moved(tiny_model(), .5).eval(), np.random.default_rng(0).integers(0, 11, (9, 10))
    asked = []
    hook = model.register_forward_pre_hook(lambda m, args: asked.append(args[0]))
    got = correct_fills(model, held, 4)
    hook.remove()
    z, y = (torch.cat(asked[k::2]) for k in (0, 1))
    every, right, again = torch.ones(1, 10, dtype=torch.bool), [], []
    for i in range(9):
        with torch.no_grad():
            first, second = (model(a[i:i + 1]).logits(every).argmax(-1) for a in (z, y))
        assert torch.equal(y[i], torch.where(z[i] == model.mask_id, first, z[i]))
        right.append(y[i].numpy() == held[i])
        again.append(second.numpy() == held[i])
    right, again = np.array(right), np.array(again)
    assert got['before'] == right.mean() and got['after'] == again.mean()
    assert got['kept']['value'] == again[right].mean()
    assert got['fixed']['value'] == again[~right].mean()
