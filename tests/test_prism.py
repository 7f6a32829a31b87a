"When PRISM remasks."
import torch
from hypothesis import given, strategies as hs

from navira.prism import Window
from helpers.peers import state


@given(hs.integers(0, 100), hs.integers(0, 100), hs.sampled_from([1, 7, 20, 100, 128, 1000]))
def test_a_window_is_that_of_exact_fractions(a, b, T):
    "`.55 * 100` is above 55 in floats, so the expected steps are computed without any"
    on, off = sorted((a, b))
    exact = [i for i in range(T) if on * T <= 100 * i < off * T]
    k = Window(1, on / 100, off / 100)
    assert [i for i in range(T) if k(state(torch.zeros(4).long(), 9, i, T, 1))] == exact
