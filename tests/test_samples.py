"What a sampler returns, and how it shows itself."

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as hs

from navira.samples import Samples
from helpers.replay import data_of, decode, random_trace, rebuilt


class Letters:
    "A tokenizer of characters."

    def decode(self, ids, **_):
        return ''.join(map(chr, ids))


def letters(*texts, **kw):
    most = max(map(len, texts))
    ids = torch.tensor([[*map(ord, t), *[-1] * (most - len(t))] for t in texts])
    given = dict(policy='navira', charged=64) | kw
    return Samples(ids, torch.arange(len(texts)) + 41, 32, 64, 1.25, Letters(), **given)


def test_samples_are_their_texts():
    out = letters('one', 'three', 'seventeen')
    assert (
        len(out) == 3
        and list(out) == out.texts == ['one', 'three', 'seventeen']
        and out[0] == 'one'
    )
    assert out[-1] == 'seventeen' and out[1:] == ['three', 'seventeen'] and 'three' in out
    with pytest.raises(IndexError):
        out[3]


@settings(max_examples=30)
@given(hs.text(min_size=1, max_size=40) | hs.sampled_from(['a\x1b[2Jb', '\u202e']))
def test_a_text_does_not_control_the_terminal(text):
    shown = repr(letters(text))
    assert not re.search(
        '[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]', shown
    )
    shown.encode()

def test_the_same_sample_of_two_runs_is_replayed_side_by_side():
    "By its number, whatever batch it was in; another seed, or no trace, is refused."
    trace = random_trace(4, 3, 8)

    class Hostile:
        def decode(self, ids, **_):
            return decode(ids)

    def made(t, **kw):
        return Samples(
            t.x[-1].long(),
            torch.zeros(t.n),
            t.T,
            4,
            0.0,
            Hostile(),
            t,
            **dict(policy='prism', seed=1) | kw,
        )

    by_row = {k: getattr(trace, k)[:, 1:] for k in ('x', 'remasked', 'unmasked', 'score', 'tau')}
    a, b = (
        made(trace, first=5),
        made(replace(trace, fixed=trace.fixed[1:], **by_row), first=6, policy=''),
    )
    d = data_of(a.replay(row=2, other=b).html)
    rebuilt(d, [trace, trace], 2)
    assert [p['name'] for p in d['panels']] == ['prism', 'second']
    for row, other, sentence in (
        (0, b, 'other: it has samples 6 to 7, expected sample 5'),
        (1, replace(b, seed=2), 'other: it was sampled with seed=2, expected seed=1'),
        (1, replace(b, trace=None), 'no trace was recorded'),
    ):
        with pytest.raises(ValueError, match=sentence):
            a.replay(row=row, other=other)
