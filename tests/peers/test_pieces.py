"""What peers share: blocks, and counts in blocks."""
import itertools

import torch

from navira.core import TopK
from navira.peers.orders import llada_counts
from navira.peers.pieces import Within, per_block
from helpers.orders import state

def test_llada_counts_and_blocks_in_closed_form():
    for n, T in itertools.product(range(1, 18), range(1, 20)):
        got = [int(llada_counts(torch.tensor([n]), i, T)) for i in range(T)]
        assert got == [n // T * (i + 1) + min(i + 1, n % T) for i in range(T)] and got[-1] == n
    for nb, length, T in [(4, 8, 13), (1, 5, 7), (3, 2, 3)]:
        got = [int(per_block(llada_counts, length)(torch.tensor([nb * length]), i, T)) for i in range(T)]
        assert got == sorted(got) and got[-1] == nb * length and all(b * length in got for b in range(1, nb + 1))

def test_a_later_block_waits():
    st = state([[0, 1, 1, 1, 1, 1]])
    rule = TopK(lambda *_: torch.arange(6.)[None], 1)
    assert rule(st, None, st.masked).nonzero().tolist() == [[0, 5]]
    assert Within(3, rule)(st, None, st.masked).nonzero().tolist() == [[0, 2]]
