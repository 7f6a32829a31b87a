"What a sampler returns, and how it shows itself."

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from navira.samples import Samples
from helpers.replay import data_of, decode, random_trace, rebuilt


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


def test_the_same_sample_of_two_runs_is_replayed_side_by_side():
    "By its number, whatever batch it was in; another one, or no trace, is refused."
    trace = random_trace(4, 3, 8)

    hostile = SimpleNamespace(decode=lambda ids, **_: decode(ids))

    def made(t, **kw):
        ran = torch.zeros(t.n)
        return Samples(t.x[-1].long(), ran, t.T, 4, 0.0, hostile, t, seed=1, **kw)

    by_row = {k: getattr(trace, k)[:, 1:] for k in ('x', 'remasked', 'unmasked', 'score', 'tau')}
    a = made(trace, first=5, policy='prism')
    b = made(replace(trace, fixed=trace.fixed[1:], **by_row), first=6, policy='')
    d = data_of(a.replay(row=2, other=b).html)
    rebuilt(d, [trace, trace], 2)
    assert [p['name'] for p in d['panels']] == ['prism', 'second']
    for row, other, sentence in (
        (0, b, 'row=-1: the trace has rows 0 to 1'),
        (1, replace(b, trace=None), 'no trace was recorded'),
    ):
        with pytest.raises(ValueError, match=sentence):
            a.replay(row=row, other=other)
