"""Texts made worse by degrees."""
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from navira.evaluation.ladder import LEAST, ladder, LOOP, SHARES

WORDS = some.sampled_from(['the', 'old', 'house', 'stood.', '"By!"', 'a', 'river,', 'Why?'])
TEXTS = some.lists(some.lists(WORDS, min_size=LEAST, max_size=60), min_size=1, max_size=4)

@settings(max_examples=50, deadline=None)
@given(TEXTS, some.sampled_from([' ', '\n\n', '  ']), some.integers(0, 9))
def test_rungs_of_any_texts(texts, space, seed):
    made = ladder([space.join(t) for t in texts], seed)
    every = {w for t in texts for w in t}
    for i, real in enumerate(texts):
        rung = {k: v[i].split() for k, v in made.items()}
        assert rung['real'] == real and {len(w) for w in rung.values()} == {len(real)}
        assert all(len(v[i].split(space)) == len(real) for v in made.values())
        rungs = [np.array(rung[f'{share:.0%} replaced'], object) for share in SHARES]
        for share, worse, worst in zip(SHARES, rungs, rungs[1:] + rungs[-1:]):
            changed = worse != np.array(real, object)
            assert changed.sum() <= max(1, round(share * len(real)))
            assert (worse[changed] == worst[changed]).all()     # stays replaced in the next rung
        assert {*rungs[-1]} <= every
        assert rung['loop'] == [real[k % LOOP] for k in range(len(real))]
        shuffled = sentences(rung['shuffled'], real)
        assert [*map(sorted, shuffled)] == [*map(sorted, sentences(real, real))]

def sentences(words, real):
    "Words cut where the real text's sentences end."
    ends = [k + 1 for k, w in enumerate(real) if re.search(r'[.!?]\W*$', w)]
    return np.split(np.array(words, object), ends)

def test_what_is_replaced_is_as_many_as_said_where_all_words_differ():
    text = ' '.join(f'w{i}' for i in range(100))
    made = ladder([text, text.replace('w', 'v')])
    for share in SHARES:
        same = np.array(made[f'{share:.0%} replaced'][0].split()) == np.array(text.split())
        assert 100 * share - 3 <= (~same).sum() <= 100 * share

def test_a_text_that_is_too_short():
    with pytest.raises(ValueError, match='text 1: 19 words; expected at least 20'):
        ladder(['w ' * 20, 'w ' * 19])
