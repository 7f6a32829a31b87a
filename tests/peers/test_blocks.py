"""Blocks, counts in blocks, and predictions in portions."""
import itertools

import pytest
import torch

from navira.peers.blocks import per_block
from navira.peers.orders import llada_counts
from navira.sampling import sample
from toys import Tiny

def test_llada_counts_and_blocks_in_closed_form():
    for n, T in itertools.product(range(1, 18), range(1, 20)):
        got = [int(llada_counts(torch.tensor([n]), i, T)) for i in range(T)]
        assert got == [n // T * (i + 1) + min(i + 1, n % T) for i in range(T)] and got[-1] == n
    for n, length, T in [(4, 8, 13), (1, 5, 7), (3, 2, 3)]:
        N, count = torch.tensor([n * length]), per_block(llada_counts, length)
        got = [int(count(N, i, T)) for i in range(T)]
        assert got == sorted(got) and {b * length for b in range(1, n + 1)} <= set(got)

@pytest.mark.parametrize('name', ['dream-entropy', 'dream-maskgit-plus', 'llada-low-confidence'])
def test_a_large_vocabulary_goes_in_portions(name, one_thread):
    "Each mask is computed in parts, and the texts are the same"
    few, many = Tiny(12, 4), Tiny(12, 4)
    many.vocab_size = 2**23                       # four positions at a time
    a, b = (sample(m, name, 6, 3, batch_size=3) for m in (few, many))
    assert torch.equal(a.tokens, b.tokens) and max(many.asked) <= 4 < max(few.asked)
