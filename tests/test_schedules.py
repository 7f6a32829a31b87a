"""Temperatures over time, against the equations of the paper."""
from dataclasses import replace

import torch

from navira.base.noise import Noise
from navira.core import State
from navira.sampling import sample
from toys import Tiny


def test_progress_goes_from_zero_to_one_and_is_zero_for_one_step():
    st = State.start(torch.full((1, 3), 9), 9, 5, Noise(0, torch.arange(1)))
    assert [replace(st, i=i).u for i in range(5)] == [0, .25, .5, .75, 1] and replace(st,
                                                                                      n=1).u == 0
    seen = []
    def tau(st): seen.append(st.u); return .3
    sample(Tiny(8, 4), 'navira', 16, 1, tau=tau, n_remask=1, on=0.)
    assert set(seen) - {0.} == {i / 7 for i in range(1, 8)}
