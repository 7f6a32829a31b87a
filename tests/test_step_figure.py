"""The figure of one step, whatever the tokens hold."""
import pytest
import torch

from navira.step_figure import draw_step
from helpers.replay import decode, random_trace

@pytest.mark.filterwarnings("ignore:Glyph")
def test_figure_of_hostile_tokens(tmp_path):
    tr = random_trace(8, 1, 24, seed=2)
    i = tr.remasked[:, 0].any(1).nonzero()[0].item()
    for kw in ({}, dict(window=3), dict(window=(0, 5)), dict(score=torch.sigmoid)):
        draw_step(tr, 0, i, decode, **kw).savefig(tmp_path / "f.png")
