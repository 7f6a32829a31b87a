"A joint that is known exactly: predictions depend on tokens as sums over the joint say."
import pytest
from hypothesis import given, strategies as hs
import torch
from toys import random_joint

@given(hs.lists(hs.integers(0, 2), min_size=4, max_size=4), hs.integers(0, 99))
def test_how_far_predictions_depend_on_tokens_is_what_sums_over_the_joint_give(x, seed):
    "At a mask: expected over its token; at a token: what masking it moves"
    model = random_joint(4, 2, seed=seed)
    M = model.mask_id
    far = model.attending(torch.tensor([x]))[1][0]
    def predicted(y, i): return torch.tensor(model.given(tuple(y)))[i, :M]
    def moved(i, j, v):
        other = [*x[:j], v, *x[j + 1:]]
        return abs(predicted(x, i) - predicted(other, i)).sum() / 2
    for i in range(4):
        for j in set(range(4)) - {i}:
            want = (sum(q * moved(i, j, v) for v, q in enumerate(predicted(x, j)))
                    if x[j] == M else moved(i, j, M))
            assert far[i, j].item() == pytest.approx(float(want), abs=1e-6)
    assert far.diagonal().abs().max() < 1e-12
