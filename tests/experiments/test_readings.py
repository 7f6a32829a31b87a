"""Comparisons at equal passes, equal steps, equal entropy: the same runs, read seven ways."""
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import navira.experiments.old_results as fg_results
from navira.experiments.cells import Cell, plain, rule, settled
from navira.experiments.old_sweep import cells, read_sweep
from navira.experiments.old_results import METHODS, Missing, number, read, system
from navira.experiments.figures import figure3, figure4, plane
from navira.experiments.readings import ALONG, curve, curves, PAIRS, reading, worth
from helpers.figures import ETAS, GRID, SLOPES, made_up, many, toy  # noqa: F401

def truth(a, b):
    "of `worth`: where entropies are equal, in the middle of the common range"
    reach = min(2 * .08 * (128 if p.startswith('prism') else 64)**.5 for p in (a, b))
    return (SLOPES[a] - SLOPES[b]) * reach / 2 + .1 * (a.startswith('prism') - b.startswith('prism'))

# --- curves -----------------------------------------------------------------------------------------------------------

@given(st.lists(st.floats(.05, 1), min_size=1, max_size=6), st.floats(-5, 5), st.floats(0, 1))
def test_reading_is_exact_on_a_straight_line(steps, slope, share):
    x = 4.3 - np.cumsum([0, *steps]); y = 6 + slope * x
    at = x[-1] + share * (x[0] - x[-1])
    assert reading(x[:, None], y[:, None], at)[0] == pytest.approx(6 + slope * at, abs=1e-9)

@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=2, max_size=6), st.floats(-1, 6))
def test_reading_stays_within_the_curve(points, at):
    x, y = np.array(points).T
    v = reading(x[:, None], y[:, None], at)[0]
    if min(x) <= at <= max(x): assert min(y) - 1e-9 <= v <= max(y) + 1e-9
    elif not min(x) - 1e-9 <= at <= max(x) + 1e-9: assert math.isnan(v)      # nearer, rounding decides

@pytest.mark.parametrize(
    'a, b, names',
    [
        ('prism', 'navira-det', ('PRISM', 'NAVIRA-det')),
        ('navira-det', 'navira', ('NAVIRA-det', 'NAVIRA tau=0.2')),
        ('prism', 'prism-stochastic', ('PRISM', 'PRISM stochastic')),
    ],
)
def test_worth_is_what_was_put_in(toy, a, b, names):
    for along in ALONG:
        assert worth(toy, *names, along)[0] == pytest.approx(truth(a, b), abs=.01)
        np.testing.assert_allclose(worth(toy, *names, along), -worth(toy, *names[::-1], along))

def test_a_curve_starts_from_the_backbone_with_as_many_steps(toy, tmp_path):
    for name, F in {'PRISM': 128, 'PRISM stochastic': 128, 'NAVIRA-det': 64, 'NAVIRA tau=0.2': 64}.items():
        first, *rest = curve(toy, name, 128)
        assert (first.name, first.budget) == ('MDLM backbone', F)
        assert [p.setting for p in rest] == ETAS
        assert {p.steps for p in (first, *rest)} == {F}
    lone = read(
        made_up(tmp_path / 's', dict(GRID, entries=[dict(GRID['entries'][0], budgets=[128]), *GRID['entries'][1:]]))
    )
    # the backbone at 128 forwards has twice the steps
    assert [p.setting for p in curve(lone, 'NAVIRA-det', 128)] == ETAS

def test_the_same_rule_in_one_pass_and_in_two(tmp_path):
    "Nothing but the backbone differs: that is what the second pass costs, at equal entropy and at equal remasks"
    base = read(
        made_up(
            tmp_path / 's',
            dict(GRID, entries=[e for e in GRID['entries'] if e['policy'] in ('backbone', 'prism', 'navira-det')]),
        )
    )
    alike = [
        replace(p, rows=p.rows.assign(nll=p.rows.nll + 100 * (4.0 - 3.0) * 2 * p.setting * 64**0.5))
        if p.name == 'NAVIRA-det'
        else p
        for p in base.points
    ]
    # remasks are whole numbers
    for along in ALONG:
        assert worth(replace(base, points=alike), 'PRISM', 'NAVIRA-det', along)[0] == pytest.approx(0.1, abs=0.01)

def test_worth_holds_the_truth(tmp_path):
    "Interpolation and all: 40 stores of noise"
    rng, hit = np.random.default_rng(0), 0
    base = made_up(
        tmp_path / 'base',
        dict(
            GRID, entries=[GRID['entries'][0], *[e for e in GRID['entries'] if e['policy'] in ('prism', 'navira-det')]]
        ),
    )
    r = read(base)
    for _ in range(40):
        ps = []
        for p in r.points:
            H, y, _ = p.entropy[0], p.log_perplexity[0], None
            z = rng.standard_normal((2, p.n)) * .1
            ps.append(replace(p, rows=p.rows.assign(entropy=H + z[0], nll=100 * (y + z[1]))))
        x = number(worth(replace(r, points=ps), 'PRISM', 'NAVIRA-det'))
        hit += x.lo <= truth('prism', 'navira-det') <= x.hi
    assert hit >= 34

def test_curves_that_do_not_meet_are_missing(toy):
    far = [
        p if p.name != 'NAVIRA-det' else replace(p, rows=p.rows.assign(entropy=p.rows.entropy - 9))
        for p in toy.points
        if p.name in ('PRISM', 'NAVIRA-det')
    ]
    with pytest.raises(Missing, match='do not overlap'): worth(replace(toy, points=far), 'PRISM', 'NAVIRA-det')

def test_legend_covers_no_data(toy):
    "Legends stand below the axes; nothing sticks out of the figure"
    for make in (figure3, plane, curves):
        fig = make(toy)
        fig.draw_without_rendering()
        box = fig.legends[0].get_window_extent()
        assert not any(box.overlaps(ax.get_window_extent()) for ax in fig.axes)
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= fig.bbox.x1 + 1

def test_a_policy_looks_the_same_in_every_figure(toy, many):
    "Colour, marker and line, whatever else is drawn: in figures of a store, and in what `navira compare` draws"
    from navira.cli.compare import figure
    import pandas as pd

    looked = lambda fig: {
        c.get_label(): (c[0].get_color(), c[0].get_marker())
        for ax in fig.axes
        for c in ax.containers
        if c.get_label().startswith(('prism', 'navira'))
    }
    rows = [
        dict(
            label=n,
            budget=F,
            perplexity=9.0,
            perplexity_lo=8.0,
            perplexity_hi=10.0,
            entropy=4.0,
            entropy_lo=3.9,
            entropy_hi=4.1,
        )
        for n in ('navira-det', 'mine', 'prism', 'navira:tau=.2', 'prism-stochastic')
        for F in (8, 16)
    ]
    seen = {}
    for fig in (
        plane(toy),
        curves(toy),
        figure3(toy),
        figure4(toy),
        plane(many),
        figure(pd.DataFrame(rows), 'made-up numbers'),
    ):
        for k, v in looked(fig).items(): assert seen.setdefault(k, v) == v, k
    assert {'prism', 'navira-det', 'navira:tau=.2'} <= set(seen)

def test_made_up_numbers_say_so_in_the_title(toy):
    "As the real ones do not"
    real = replace(toy, record=toy.record | dict(fingerprint='0123abcd'))
    for make in (figure3, figure4, plane, curves):
        assert make(toy).get_suptitle().endswith('(made-up numbers)') and 'made-up' not in make(real).get_suptitle()

def test_rate_is_twice_eta(tmp_path):
    r = read(
        made_up(
            tmp_path / 's',
            dict(
                GRID,
                entries=[
                    *GRID['entries'],
                    dict(policy='navira-onepass-suspects', vary=dict(rate=[0.02, 0.04, 0.08, 0.16])),
                ],
            ),
        )
    )
    assert r.eta == .08
    assert r.point('one pass, suspects', 128).setting == .16
    assert r.point('one pass, suspects', 128, .01).setting == .02
    assert [p.budget for p in curve(r, 'one pass, suspects', 128)][0] == 128
    assert curve(r, 'one pass, suspects', 128)[0].setting is None

def test_learned_scores_are_compared_with_heuristics_of_as_many_passes():
    for what, passes in {'learned scores': 2, 'learned scores, coupled': 1}.items():
        assert {
            rule(Cell(m.policy, 8, m.hyper)).passes for n in PAIRS[what] for m in [METHODS[n]]
        } == {passes}

@pytest.mark.parametrize('name', ['small', 'curves', 'ablations', 'one-gpu'])
def test_what_stands_on_the_plane_corrects_as_much(name):
    "eta is 0.08 wherever a policy has PRISM's eta, unless it is what varies; labels are the names of methods"
    for c in cells(s := read_sweep(name)):
        own, it = settled(c), fg_results.known().get(system(c.policy, c.change, plain(settled(c))))
        varied = any(e.vary and e.label == c.label for e in s.entries)
        if 'on' in own and own.get('n_remask') is None and not varied:
            assert own.get('eta', own.get('rate', 0) / 2) == 0.08, c
        assert it is None or c.label in (it, 'ReMDM', c.policy), c
        if c.policy == 'remdm-loop': assert own['eta'] == .02
