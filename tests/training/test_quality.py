"""AUROC, reliability and calibration of a quality score."""
import json, math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.training.card import _believed
from navira.training.quality import (
    _corrected_record, _judged_record, auroc, auroc_interval, correct_fills, Corrected, Judged, reliability)
from helpers.training import one_thread, table, tiny_model  # noqa: F401

@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs(pairs):
    s, r = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])
    if r.all() or not r.any(): assert math.isnan(auroc(s, r)); return
    expect = np.mean([(a > b) + .5 * (a == b) for a in s[r] for b in s[~r]])
    assert auroc(s, r) == pytest.approx(expect)

def test_auroc_interval_is_wider_for_clustered_tokens():
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(200), 8)
    # eight copies of each token
    right = np.repeat(rng.random(200) < .5, 8); score = right + np.repeat(rng.normal(size=200), 8)
    wide, narrow = (np.diff(auroc_interval(score, right, r, n=300))[0] for r in (rows, np.arange(1600)))
    assert wide > 2 * narrow

@pytest.mark.parametrize('right', [True, False])
def test_without_right_and_wrong_tokens_there_is_no_auroc_and_a_sentence_says_so(right):
    n = np.zeros(16)
    with pytest.warns(UserWarning, match=f'{16 * right} of 16 judged tokens are right.*there is none') as said:
        record = _judged_record(Judged(score=n, right=n + right > 0, drawn=n, row=np.arange(16), t=n))
    assert len(said) == 1 and math.isnan(record['quality']['low']) and 'none (all judged' in _believed(record, 'all')

def test_reliability_counts_everything():
    p, r = np.array([0., .05, .5, .95, 1.]), np.array([False, False, True, True, True])
    table = reliability(p, r)
    assert (
        sum(b['n'] for b in table) == 5 and [b['n'] for b in table] == [2, 1, 2]
        and all(b['low'] <= b['right'] <= b['high'] for b in table))

@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31))
def test_what_is_corrected_is_counted_token_by_token(N, L, seed):
    rng = np.random.default_rng(seed)
    q = Corrected(rng.random((N, L)) < .5, rng.random((N, L)) < .7, rng.random(N))
    tokens = [(bool(b), bool(a)) for b, a in zip(q.before.ravel(), q.after.ravel(), strict=True)]
    for share, among in ((q.fixed, [a for b, a in tokens if not b]), (q.kept, [a for b, a in tokens if b])):
        if among: assert share.value == pytest.approx(sum(among) / len(among))
        else: assert math.isnan(share.value)
    record = _corrected_record(q)['correction']
    assert record['fixed']['tokens'] + record['kept']['tokens'] == N * L
    assert 'NaN' not in json.dumps(record) and (record['fixed']['value'] is None) == bool(q.before.all())
    assert sum(b['sequences'] for b in record['by_noise']) == record['sequences'] == N
    assert record['before'] == pytest.approx(q.before.mean()) and record['after'] == pytest.approx(q.after.mean())

def test_the_second_look_is_at_the_models_own_fill():
    "Masks filled by the argmax, then the argmax everywhere: a row at a time, in any batches, in eval mode as it is."
    model = tiny_model().eval()
    with torch.no_grad():
        for p in model.parameters(): p.add_(.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    held = np.random.default_rng(0).integers(0, 11, (9, 10))
    asked = []
    hook = model.register_forward_pre_hook(lambda m, args: asked.append(args[0]))
    q = correct_fills(model, held, 4)
    hook.remove()
    z, y = (torch.cat(asked[k::2]) for k in (0, 1))
    every = torch.ones(1, 10, dtype=torch.bool)
    with torch.no_grad():
        for i in range(9):
            first, second = (model(rows[i:i + 1]).logits(every).argmax(-1) for rows in (z, y))
            assert torch.equal(y[i], torch.where(z[i] == model.mask_id, first, z[i]))
            assert (q.before[i] == (y[i].numpy() == held[i])).all()
            assert (q.after[i] == (second.numpy() == held[i])).all()
    assert len(set((q.t * 9).astype(int).tolist())) == 9                                # a level in each ninth
    visible = (z != model.mask_id).numpy()
    assert q.before[visible].all() and visible.any()

def test_a_model_that_repeats_keeps_all_and_fixes_none():
    class Repeats(torch.nn.Module):
        mask_id, device = 5, 'cpu'
        def forward(self, x): self.x = x; return self
        def logits(self, where): return torch.nn.functional.one_hot(self.x[where] % 5, 5).float()
    q = correct_fills(Repeats(), np.ones((20, 8), np.int64))        # a mask becomes token 0, which is wrong
    assert q.kept.value == 1 and q.fixed.value == 0 and (q.before == q.after).all() and 0 < q.before.mean() < 1
