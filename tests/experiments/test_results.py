"Numbers with intervals: what they are of, how they are shown, and what follows from them."
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from navira.experiments.plots import in_markdown, looks, Table
from navira.experiments.results import (
    shown, verdict)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3))
def test_a_number_shows_its_three_parts(v, w):
    text = shown(v, v - w, v + w).replace('−', '-').translate(str.maketrans('[],', '   '))
    value, low, high = map(float, text.split())
    assert low <= value <= high and abs(value - v) <= max(w, abs(v) * .01) + 1e-9

def test_no_number_is_a_dash_and_no_end_is_rounded_to_the_bound():
    assert shown(math.nan, 1, 2) == shown(1.) == '–'
    assert shown(1.0365, 1.0002, 1.0732, bound=1.) == '1.0365 [1.0002, 1.0732]'


@pytest.mark.parametrize('centre, said',
                         [(-3., 'holds'), (3., 'does not hold'), (0., 'cannot tell')])
def test_a_verdict_follows_from_the_resamplings(centre, said):
    draws = np.r_[centre, np.random.default_rng(0).normal(centre, 1, 2000)]
    assert verdict(draws, -1) == verdict(draws, -1, margin=1) == said
    assert verdict(draws, -1, margin=6) == 'equal'
    assert verdict(draws, -1, p=.051) == 'cannot tell' and verdict(None, -1) == 'not tested'

@given(st.lists(st.text(max_size=8), min_size=1, max_size=9, unique=True))
def test_no_two_of_nine_look_alike(labels):
    made = looks(labels)
    assert len({(v['marker'], v['ls']) for v in made.values()}) == len(labels)

@given(st.text(max_size=20))
def test_a_table_prints_any_text(text):
    t = Table(text, pd.DataFrame({'a': [text, None], 'b': [1., 2]}), text)
    assert in_markdown('|') in Table('', pd.DataFrame({'|': ['|']})).markdown()
    assert t.markdown() and t._repr_html_()
