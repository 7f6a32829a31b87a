"""What is judged, with which interval, and what is corrected."""
import numpy as np
import pytest
import torch

from navira.training.measures import auroc_interval, correct_fills, judge_draws
from helpers.training import moved, one_thread, tiny_model  # noqa: F401

HELD = np.random.default_rng(0).integers(0, 11, (40, 10))

@pytest.fixture
def model():
    "It remembers what it has read."
    model = moved(tiny_model(), .5).eval()
    model.read = []
    model.register_forward_pre_hook(lambda m, args: m.read.append(args[0]))
    return model

def test_an_interval_is_wider_for_clustered_tokens():
    rng, rows = np.random.default_rng(0), np.repeat(np.arange(200), 8)
    right = np.repeat(rng.random(200) < .5, 8)     # eight copies of each token
    score = right + np.repeat(rng.normal(size=200), 8)
    wide, narrow = (np.diff(auroc_interval(score, right, r, n=300))[0]
                    for r in (rows, np.arange(1600)))
    assert wide > 2 * narrow

def test_what_is_judged_is_drawn_at_masks_and_scored_in_its_text(model):
    q = judge_draws(model, HELD, fill=3, batch_size=8)
    early, y = (torch.cat(model.read[k::2]) for k in (0, 1))
    new = (early == model.mask_id) & (y != model.mask_id)
    assert torch.equal(new.sum(1), (early == model.mask_id).sum(1).clamp(max=3))
    assert q.row.tolist() == new.nonzero()[:, 0].tolist() and q.drawn.between(0, 1).all()
    assert q.right.tolist() == (y == torch.from_numpy(HELD))[new].tolist()
    torch.testing.assert_close(torch.tensor(q.score.to_numpy()), model(y).quality()[new].detach())

def test_the_second_look_is_at_the_models_own_fill(model):
    "Masks filled by the argmax, then the argmax everywhere."
    got, held = correct_fills(model, HELD[:9], 4), torch.from_numpy(HELD[:9])
    z, y = (torch.cat(model.read[k::2]) for k in (0, 1))
    every = torch.ones_like(z, dtype=torch.bool)
    first, second = (model(a).logits(every).argmax(-1).view(z.shape) for a in (z, y))
    assert torch.equal(y, torch.where(z == model.mask_id, first, z))
    right, again = y == held, second == held
    found = [got['kept']['value'], got['fixed']['value'], got['before'], got['after']]
    shares = [a.double().mean().item() for a in (again[right], again[~right], right, again)]
    assert found == pytest.approx(shares)
