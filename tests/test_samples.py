"What a sampler returns, and how it shows itself."


import pytest
import torch

from navira.samples import Samples


class Letters:
    "A tokenizer of characters."

    def decode(self, ids, **_):
        return ''.join(map(chr, ids))


def test_samples_are_their_texts():
    ids = torch.tensor([[*map(ord, t.ljust(9, '_'))] for t in ('one', 'three', 'seventeen')])
    out = Samples(ids.where(ids != ord('_'), -1), torch.arange(3), 32, 64, 1.25, Letters())
    assert len(out) == 3 and list(out) == out.texts == ['one', 'three', 'seventeen']
    assert out[-1] == 'seventeen' and out[1:] == ['three', 'seventeen'] and 'three' in out
    with pytest.raises(IndexError):
        out[3]
