"""Notebook 13 as its users treat it: on stores that are incomplete, hostile or wrong, and against answers that are
known."""
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from navira.base.stats import FEW, bootstrap, resamplings
from navira.base.tables import Table, terminal
from navira.experiments.old_results import mean, Missing, Number, number, read, TABLE1, TABLE2
from helpers.figures import GRID, HOSTILE, is_png, made_up, reported, toy  # noqa: F401

# --- numbers ----------------------------------------------------------------------------------------------------------

def test_intervals_hold_the_truth_as_often_as_they_say():
    "Means, ratios of sums and a difference, at 32 texts: percentile intervals fall a little short of 95 %"
    rng, hit = np.random.default_rng(0), np.zeros(3)
    for _ in range(300):
        v, w, z = rng.standard_normal(32), rng.uniform(50, 150, 32), rng.standard_normal(32)
        for k, d in enumerate((mean(v + 1), mean(w * (1 + .3 * v), w), mean(v) - mean(v + .5 * z))):
            x = number(d); hit[k] += x.lo <= (1, 1, 0)[k] <= x.hi
    assert (hit / 300 > .9).all() and (hit / 300 < .985).all()

def test_agrees_with_the_bootstrap_of_notebook_11():
    v, w = np.random.default_rng(1).uniform(1, 2, (2, 200))
    x = number(mean(v, w), np.exp)
    np.testing.assert_allclose((x.lo, x.hi), bootstrap(v, w, np.exp), rtol=.005)
    assert x.value == pytest.approx(np.exp(v.sum() / w.sum()))

@given(st.integers(1, 40), st.data())
@settings(max_examples=30, deadline=None)
def test_texts_that_were_not_judged_do_not_count(n, data):
    judged = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    v = np.where(judged, 2., np.nan)
    d = mean(v, np.where(judged, 4., np.nan))
    if not any(judged): assert np.isnan(d[0])
    else: assert d[0] == .5
    assert number(d).known <= (sum(judged) >= FEW)

def test_what_is_alike_cancels():
    "Cells of equal size are resampled alike, so noise that they share is not in their difference"
    z = np.random.default_rng(0).standard_normal(50)
    x = number(mean(z + 1) - mean(z))
    assert x.hi - x.lo < 1e-9 and x.value == pytest.approx(1)

@given(st.integers(1, 60), st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_a_text_counts_alike_whatever_the_number_of_texts(n, m):
    k = min(n, m)
    paired = [resamplings(size, paired=True)[:, :k] for size in (n, m)]
    assert (paired[0] == paired[1]).all()

def test_what_is_alike_cancels_between_cells_of_different_size():
    "64 of 100 texts are shared: the difference is as sharp as the rest allows, and still holds the truth"
    rng, hit, widths = np.random.default_rng(0), 0, []
    for _ in range(200):
        z = rng.standard_normal(100)
        x = number(mean(z[:64] + .1 * rng.standard_normal(64)) - mean(z))
        hit += x.lo <= 0 <= x.hi; widths.append(x.hi - x.lo)
    assert .9 <= hit / 200 and np.median(widths) < .8 * 2 * 1.96 * (1 / 64 + 1 / 100)**.5

def test_seeds_keep_their_place_in_cells_of_different_size(tmp_path):
    r = read(
        made_up(
            tmp_path / 's',
            dict(
                GRID, seeds=[0, 1], entries=[dict(policy='prism', eta=0.08), dict(policy='navira-det', eta=0.08, n=12)]
            ),
        )
    )
    p, q = (
        [(i, s) for i, s in zip(r.point(n, 128).rows['sample'], r.point(n, 128).rows['seed'])]
        for n in ('PRISM', 'NAVIRA-det')
    )
    assert p[:24] == q and len(p) == 48

@pytest.mark.parametrize('lost, known', [(0, True), (40, True), (80, False)])
def test_where_too_many_resamplings_do_not_have_it_there_is_no_interval(lost, known):
    d = np.r_[1., np.random.default_rng(0).normal(1, .1, 2000)]; d[1:1 + lost] = np.nan
    x = number(d)
    assert x.known == known and (not known or x.lo <= number(d[[0, *range(1 + lost, 2001)]]).lo)

@given(st.floats(-1e6, 1e6), st.floats(0, 1e5))
def test_a_number_prints_its_three_parts(v, w):
    text = str(Number(v, v - w, v + w)).replace('−', '-')
    got = [float(t) for t in text.replace('[', '').replace(']', '').replace(',', '').split()]
    assert len(got) == 3 and got == sorted([got[1], got[0], got[2]])[1:2] + [got[1], got[2]] and '-0 ' not in text + ' '
    np.testing.assert_allclose(got, [v, v - w, v + w], atol=max(.101 * w, .0051 * abs(v), 1e-9) * 1.01)

@pytest.mark.parametrize('text', HOSTILE, ids=ascii)
def test_a_label_is_only_text(text):
    t = Table('t', ('a', 'b'), [(text, Number(1, .9, 1.1))])
    row = t.markdown().split('\n')[4]
    assert row.count('|') - row.count(r'\|') == 3 and '<' not in row and '](' not in row and '\x1b' not in row
    line = t.latex().split('\n')[6]
    assert line.endswith(r'\\')
    assert line.startswith('{}')
    assert not any(line.replace('\\' + c, '').count(c) for c in '$%#_')
    assert line.count('&') - line.count(r'\&') == 1 and r'\input' not in line
    assert '<script' not in t._repr_html_()
    console = Console(width=60, record=True, file=open('/dev/null', 'w'))
    console.print(terminal(t))
    assert ' '.join(text.replace('\x1b', '').split()) in ' '.join(console.export_text().split())

def test_no_cell_without_an_interval(tmp_path):
    "Three texts are too few for an interval: there is nothing to read"
    with pytest.raises(Missing, match='at most 3 texts a point, and an interval needs 8'):
        read(made_up(tmp_path / 's', dict(GRID, n=3, batch_size=3)))

def test_paper_is_as_printed():
    for row in TABLE1.values(): assert set(row) <= {64, 128, 256, 512, 1024}
    assert 64 not in TABLE1['PRISM'] and TABLE1['NAVIRA-det'][1024] == (1.94, 2.91)
    for _, j, o in TABLE2.values(): assert j < o / (2 - o)      # what notebook 11 remarks on

def test_report_on_the_toy(reported):
    files, _ = reported
    assert files[0].name == 'report.md' and all(f.exists() for f in files)
    figures = [f for f in files if f.suffix == '.png']
    assert len(figures) == 5 and all(map(is_png, figures))
    assert all(f.read_text().rstrip().endswith('</svg>') for f in files if f.suffix == '.svg')
    text = files[0].read_text()
    assert all(f'({f.name})' in text for f in figures) and 'no device' in text and '24 texts' in text
    lost = text.split('## Not in this store')[1]
    assert all(f'- {part}: ' in lost for part in ('table-2', 'ablations', 'varied')) and '- plane' not in lost

def test_seeds_of_one_cell_are_one_point(tmp_path):
    r = read(made_up(tmp_path / 's', dict(GRID, seeds=[0, 1], entries=[dict(policy='prism', eta=.08)])))
    assert [(p.name, p.n) for p in r.points] == [('PRISM', 48)]

def test_terminal_has_the_tables(reported):
    assert 'The claims of the paper' in reported[1] and 'not in this store' in reported[1]
