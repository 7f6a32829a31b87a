"""Temperatures over time, against the equations of the paper."""
from dataclasses import replace

import numpy as np
import pytest
import torch

from navira import schedules
from navira.base.noise import Noise
from navira.core import State
from navira.sampling import sample
from helpers.core import FORMS
from toys import Tiny

GRID = np.linspace(0, 1, 401)
@pytest.mark.parametrize(
    'f, plain',
    [
        (getattr(schedules, n.removeprefix('navira-'))(**FORMS[n][0]), FORMS[n][1])
        for n in FORMS
        if n.startswith('navira-') and n != 'navira-det'
    ],
)
def test_schedules_are_those_of_the_paper(f, plain):
    got = np.array([f(u) for u in GRID])
    assert got == pytest.approx([plain(u) for u in GRID], rel=1e-12) and (np.diff(got) >= 0).all()

def test_progress_goes_from_zero_to_one_and_is_zero_for_one_step():
    st = State.start(torch.full((1, 3), 9), 9, 5, Noise(0, torch.arange(1)))
    assert [replace(st, i=i).u for i in range(5)] == [0, .25, .5, .75, 1] and replace(st,
                                                                                      n=1).u == 0
    seen = []
    def tau(st): seen.append(st.u); return .3
    sample(Tiny(8, 4), 'navira', 16, 1, tau=tau, n_remask=1, on=0.)
    assert set(seen) - {0.} == {i / 7 for i in range(1, 8)}
