"Numbers with intervals: what they are of, how they are shown, and what follows from them."
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from navira.base.stats import resampled
from navira.experiments.plots import in_markdown, looks, Table
from navira.experiments.results import (
    at_equal, curve_at, differences, Missing, points, shown, tables, verdict)

def samples(n=40, seeds=1):
    """A frame as `frame` makes it: a policy with strength e has entropy 4 - e and log-perplexity
    5 - 2 e, about."""
    rng, rows = np.random.default_rng(0), []
    for policy, e in ('prism', .1), ('prism', .2), ('backbone', None):
        for seed in range(seeds):
            noise = rng.normal(size=n) / 10
            rows.append(pd.DataFrame(dict(
                point=f'{policy}{e}', cell=f'{policy}{e}{seed}', label=policy, policy=policy,
                change=None, budget=8, role='', steps=8, top_p=.9, strength=e, seed=seed,
                sample=range(n), entropy=4 - (e or 0) + noise, weight=10., n_forward=8,
                nll=10 * (5 - 2 * (e or 0) + noise), n_remasked=100 * (e or 0))))
    return pd.concat(rows, ignore_index=True)

def test_a_point_is_the_mean_and_its_resamplings():
    df = samples(seeds=2)
    p = points(df).set_index('point').loc['prism0.1']
    own = df[df.point == 'prism0.1'].sort_values(['sample', 'seed'])
    np.testing.assert_allclose(p.entropy, resampled(own.entropy), rtol=1e-12)
    np.testing.assert_allclose(p.log_perplexity, resampled(own.nll, own.weight), rtol=1e-12)
    assert p.n == p.scored == 80

def test_tables_show_the_point_whose_role_says_so():
    df = samples()
    assert [*tables(points(df)).index] == [('backbone', 8)]     # prism has two strengths
    role = np.where(df.strength == .1, 'table', 'curve')
    t = tables(points(df.assign(role=role)))
    assert t.strength['prism', 8] == .1
    more = differences(t, 'backbone', 'prism', 'entropy')
    np.testing.assert_allclose(more[8], t.entropy['prism', 8] - t.entropy['backbone', 8])
    with pytest.raises(LookupError): differences(t, 'backbone', 'mdlm', 'entropy')

@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3))
def test_a_number_shows_its_three_parts(v, w):
    text = shown(v, v - w, v + w).replace('−', '-').translate(str.maketrans('[],', '   '))
    value, low, high = map(float, text.split())
    assert low <= value <= high and abs(value - v) <= max(w, abs(v) * .01) + 1e-9

def test_no_number_is_a_dash_and_no_end_is_rounded_to_the_bound():
    assert shown(math.nan, 1, 2) == shown(1.) == '–'
    assert shown(1.0365, 1.0002, 1.0732, bound=1.) == '1.0365 [1.0002, 1.0732]'

def test_curves_are_compared_where_both_reach():
    p = points(samples())
    a = curve_at(p, 'prism', 8)
    assert list(a.policy) == ['backbone', 'prism', 'prism']
    assert abs(at_equal(a, a)[0]) < 1e-12
    lower = a.assign(log_perplexity=a.log_perplexity - .5)
    np.testing.assert_allclose(at_equal(a, lower)[0], -.5, rtol=1e-9)
    with pytest.raises(Missing, match='overlap'): at_equal(a, a.assign(entropy=a.entropy + 9))
    with pytest.raises(Missing, match='0 of two strengths'): curve_at(p, 'mdlm', 8)

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
