"""The second pass: what it knows, what it may fill, and what it costs."""
from dataclasses import replace

import torch

from navira.core import TopK, step
from navira.registry import policy
from helpers.core import CORRECTING, DECOUPLED
from helpers.peers import state
from toys import small_lm


def test_the_second_pass_does_not_know_what_was_masked():
    "Two states that differ at positions 0 and 2 only, which the step remasks"
    model, M = small_lm(5), 10
    first = lambda st, p, where: torch.tensor([9., 0, 9] + [0] * 9).expand(st.x.shape)
    for name in CORRECTING:
        rule = replace(policy(name, n_remask=2, on=0., top_p=1.), remask=TopK(first, 2))
        starts = [[a, 4, b, 4, 9] + [M] * 7 for a, b in ((1, 2), (7, 5))]
        one, two = (step(rule, state(x, M, 5, 12, 200), model) for x in starts)
        assert (one.committed.sum(1) == 6).all()
        assert torch.equal(one.x, two.x) == (name in DECOUPLED)
