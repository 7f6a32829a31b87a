"""What stands behind the end of a text counts for nothing."""
import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from navira.evaluation import diversity

@pytest.mark.parametrize('name', ['entropy', 'pooled_entropy', 'distinct', 'self_bleu',
                                  'repetition', 'vocabulary'])
def test_padding_counts_for_nothing(name):
    rows, measure = [[5, 6, 7, 8], [5, 6, 9, 10, 11, 12]], vars(diversity)[name]
    padded = pad_sequence([*map(torch.tensor, rows)], True, -1)
    np.testing.assert_allclose(measure(padded), measure(rows))
