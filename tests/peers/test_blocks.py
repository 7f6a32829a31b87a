"""Predictions in portions."""
import pytest
import torch

from navira.sampling import sample
from toys import Tiny

@pytest.mark.parametrize('name', ['dream-entropy', 'dream-maskgit-plus', 'llada-low-confidence'])
def test_a_large_vocabulary_goes_in_portions(name, one_thread):
    "Each mask is computed in parts, and the texts are the same"
    few, many = Tiny(12, 4), Tiny(12, 4)
    many.vocab_size = 2**23                       # four positions at a time
    a, b = (sample(m, name, 6, 3, batch_size=3) for m in (few, many))
    assert torch.equal(a.tokens, b.tokens) and max(many.asked) <= 4 < max(few.asked)
