"Operations on lists: the exact denoiser against all orders."

import itertools

import numpy as np
import torch
from hypothesis import given, settings, strategies as some

from navira.tasks.lists import Lists

seeds = some.integers(0, 2**32)


@settings(max_examples=10, deadline=None)
@given(seed=seeds, visible=some.integers(0, 7))
def test_the_denoiser_of_a_shuffle_is_what_all_orders_give(seed, visible):
    rng = np.random.default_rng(seed)
    (x,) = Lists('lists-shuffle').draw(1, rng)
    every = x[1:9][np.array([*itertools.permutations(range(8))])]
    at = rng.permutation(8)[:visible]
    fits = every[(every[:, at] == x[9 + at]).all(1)]
    x[np.setdiff1d(np.arange(9, 17), 9 + at)] = 20
    got = Lists().given(torch.from_numpy(x[None]))[0, 9:].numpy()
    for i in {*range(8)} - {*at}:
        expected = np.bincount(fits[:, i], minlength=21) / len(fits)
        np.testing.assert_allclose(got[i], expected, atol=1e-12)
