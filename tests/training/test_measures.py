"""The bound of a model whose entropy is known; AUROC, reliability, and what is corrected."""
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.training.measures import (
    auroc, auroc_interval, corrected_record, correct_fills, evaluate_nelbo, judge_draws,
    judged_record, reliability)
from helpers.training import moved, one_thread, tiny_model  # noqa: F401

def test_the_bound_of_a_uniform_model():
    e = evaluate_nelbo(tiny_model().eval(), np.random.default_rng(0).integers(0, 11, (500, 10)))
    assert abs(e.value - math.log(11)) < 3 * e.se and e.n == 500

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

@pytest.mark.parametrize('right', [True, False])
def test_without_right_and_wrong_tokens_there_is_no_auroc_and_a_sentence_says_so(right):
    n = np.zeros(16)
    q = pd.DataFrame(dict(score=n, right=n + right > 0, drawn=n, row=np.arange(16), t=n))
    with pytest.warns(UserWarning,
                      match=f'{16 * right} of 16 judged tokens are right.*there is none'):
        record = judged_record(q)
    assert math.isnan(record['quality']['low'])

@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_reliability_counts_everything(tokens):
    p, r = (np.array(a) for a in zip(*tokens))
    table = reliability(p, r)
    assert table.n.sum() == len(p) and (table.right * table.n).sum() == pytest.approx(r.sum())
    assert (table.low <= table.right + 1e-12).all() and (table.right <= table.high + 1e-12).all()

@pytest.mark.parametrize('look_back', [False, True])
def test_what_is_judged_is_drawn_at_masks_and_scored_in_its_text(look_back):
    model, held = moved(tiny_model()).eval(), np.random.default_rng(0).integers(0, 11, (40, 10))
    asked = []
    hook = model.register_forward_pre_hook(lambda m, args: asked.append(args[0]))
    q = judge_draws(model, held, fill=3, batch_size=8, look_back=look_back)
    hook.remove()
    early, y = (torch.cat(asked[k::2]) for k in (0, 1))
    n = q.groupby('row').size()
    masks = (early == model.mask_id).sum(1)
    assert (n <= 3).all() and all(n.get(i, 0) == min(3, masks[i]) for i in range(40))
    assert (q.drawn.between(0, 1)).all() and len(set((q.t * 5).astype(int))) == 5
    right = (y == torch.from_numpy(held)) & (early == model.mask_id)
    assert all(q[q.row == i].right.sum() <= right[i].sum() for i in range(40))

@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 2**31))
def test_what_is_corrected_is_counted_token_by_token(N, L, seed):
    rng = np.random.default_rng(seed)
    before, after, t = rng.random((N, L)) < .5, rng.random((N, L)) < .7, rng.random(N)
    counts = dict(right=before, wrong=~before, kept=before & after, fixed=~before & after)
    record = corrected_record(pd.DataFrame({k: v.sum(1) for k,
                                            v in counts.items()}).assign(t=t))['correction']
    for name, among in (('fixed', ~before), ('kept', before)):
        expect = after[among].mean() if among.any() else math.nan
        assert record[name] == pytest.approx(expect, nan_ok=True)
    assert record['sequences'] == N
    shares = record['before'], record['after']
    assert shares == pytest.approx((before.mean(), after.mean()))

def test_the_second_look_is_at_the_models_own_fill():
    "Masks filled by the argmax, then the argmax everywhere: a row at a time, in any batches."
    model, held = moved(tiny_model(), .5).eval(), np.random.default_rng(0).integers(0, 11, (9, 10))
    asked = []
    hook = model.register_forward_pre_hook(lambda m, args: asked.append(args[0]))
    q = correct_fills(model, held, 4)
    hook.remove()
    z, y = (torch.cat(asked[k::2]) for k in (0, 1))
    every = torch.ones(1, 10, dtype=torch.bool)
    for i in range(9):
        with torch.no_grad():
            first, second = (model(a[i:i + 1]).logits(every).argmax(-1) for a in (z, y))
        assert torch.equal(y[i], torch.where(z[i] == model.mask_id, first, z[i]))
        right, again = y[i].numpy() == held[i], second.numpy() == held[i]
        counts = [a.sum() for a in (right, right & again, ~right & again)]
        assert q.loc[i, ['right', 'kept', 'fixed']].tolist() == counts
    # a level in each ninth
    assert len(set((q.t * 9).astype(int))) == 9
