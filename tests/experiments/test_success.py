"""Puzzles: the share that is solved, and the questions that it settles."""

import numpy as np
import pytest
import torch

import navira.peers  # noqa: F401
from navira.experiments.claims import against, at_equal, at_equal_steps, claims, CLAIMS, judged, ON_PUZZLES, points
from navira.experiments.made_up import made_up
from navira.experiments.report import report
from navira.experiments.old_results import METHODS, Missing, number, read
from navira.experiments.success import (
    after_leaving, asked, dials, QUESTIONS, questions, share, solved_by, solved_curves, solved_table)
from navira.experiments.old_sweep import cells, read_sweep
from navira.replay import Trace
from navira.tasks.sudoku import NAMES, random_grids

LEARNED = ('prism', 'prism-stochastic', 'navira-det', 'navira', 'navira-onepass')
GRID = dict(n=200, budgets=[1, 2, 4, 8], hyper=dict(on=0.), entries=[
    dict(policy='backbone'), dict(policy='maskgit'), *[dict(policy=p, eta=.15) for p in LEARNED],
    *[dict(policy=p, vary=dict(eta=[.05, .1, .3]), budgets=[8]) for p in LEARNED]])

@pytest.fixture(scope='module')
def stores(tmp_path_factory): # of two difficulties
    at = tmp_path_factory.mktemp('puzzles')
    return [read(made_up(at / t, GRID | dict(task=t), length=81)) for t in ('sudoku-50', 'sudoku-25')]

def test_settings_that_all_share_leave_a_method_its_name(stores):
    assert {p.name for p in stores[0].points} - set(METHODS) == {'maskgit'}
    assert {p.settled['on'] for p in stores[0].points if 'on' in p.settled} == {0.}
    assert {p.name for p in read_points_without_shared(stores[0])} >= {'PRISM (prism, other settings)'}

def read_points_without_shared(r):
    from navira.experiments.frames import samples
    from navira.experiments.old_results import points as of
    df = samples(r.store)
    return of(df.assign(label=df.label.replace('prism', 'PRISM')), r.eos)

def test_a_policy_begins_at_the_first_budget_that_it_can_do_with():
    of = cells(read_sweep(GRID))
    assert {c.budget for c in of if c.policy == 'navira'} == {2, 4, 8}
    assert {c.budget for c in of if c.policy == 'prism'} == {1, 2, 4, 8}
    for entries, budgets in (([dict(policy='navira', budgets=[1, 2])], [2]), ([dict(policy='navira')], [1])):
        s = read_sweep(dict(entries=entries, budgets=budgets))
        with pytest.raises(ValueError, match='two-pass policy needs'): cells(s)

def test_a_setting_of_all_that_none_has_is_named():
    for hyper, error, said in ((dict(onn=1.), KeyError, "hyper: hyper-parameter 'onn'.*'on'"),
                               (3, ValueError, 'hyper=3: expected a table')):
        with pytest.raises(error, match=said): read_sweep(GRID | dict(hyper=hyper))

def test_an_entry_overrules_what_all_share():
    s = read_sweep(dict(hyper=dict(on=0.), entries=[dict(policy='prism', on=.25), dict(policy='navira-det')]))
    assert {c.policy: c.hyper['on'] for c in cells(s)} == {'prism': .25, 'navira-det': 0.}

@pytest.mark.parametrize('name', ['sudoku', 'sudoku-dials', 'sudoku-peers', 'sudoku-free'])
def test_configurations_of_puzzles_have_one_cell_once(name):
    s = read_sweep(name)
    of = cells(s)
    assert len(of) > 10 and {c.hyper.get('on', 0.) for c in of} == {0.}
    if name != 'sudoku': return
    from navira.registry import policies
    assert {e.policy for e in s.entries} >= {p for p in policies() if not p.startswith('test')}
    assert {c.n for c in of if c.label in ('PRISM', 'NAVIRA-det', 'MDLM backbone', 'entropy')} == {1000}

def test_shares_are_those_that_were_put_in(stores):
    r = stores[0]
    for F in (1, 2, 4, 8):
        assert r.point('MDLM backbone', F).solved[0] == pytest.approx(max(.01, .1 * np.log2(F)), abs=.006)
    x = share(r.point('PRISM', 8))
    assert 0 <= x.lo < x.value < x.hi <= 100 and x.value == pytest.approx(100 * r.point('PRISM', 8).rows.solved.mean())
    means = [np.mean([p.solved[0] for F, p in of.items() if F >= 4]) for of in solved_by(r).values()]
    assert means == sorted(means)[::-1]

def test_differences_are_paired(stores):
    "How hard a puzzle is drops out: the interval is narrower than that of two shares apart."
    r = stores[0]
    p, q = r.point('MDLM backbone', 8), r.point('PRISM', 8)
    d = number(q.solved - p.solved)
    apart = sum((share(v).hi - share(v).lo)**2 for v in (p, q))**.5 / 100
    assert d.hi - d.lo < .8 * apart and d.lo > 0

def test_equal_steps_and_equal_forwards(stores):
    forwards, steps = (m('PRISM', 'NAVIRA-det', 'solved')(stores[0]) for m in (against, at_equal_steps))
    assert list(forwards) == ['2 forwards', '4 forwards', '8 forwards']
    assert list(steps) == ['1 steps', '2 steps', '4 steps']
    a, b = stores[0].point('PRISM', 4), stores[0].point('NAVIRA-det', 8)
    np.testing.assert_array_equal(steps['4 steps'], b.solved - a.solved)

def test_several_stores_are_one_mean(stores):
    c = asked('', '', against('MDLM backbone', 'PRISM', 'solved'))
    both, each = judged(c, *stores), [judged(c, r) for r in stores]
    assert both.number.value == pytest.approx(np.mean([f.number.value for f in each]))
    assert {k.split(', ')[0] for k in both.each} == {'sudoku-50', 'sudoku-25'}
    assert both.verdict == 'holds'

def test_a_store_that_lacks_something_leaves_the_rest(stores, tmp_path):
    bare = read(made_up(tmp_path / 'bare', dict(task='sudoku-35', n=20, entries=[dict(policy='backbone')]), length=81))
    c = asked('', '', against('MDLM backbone', 'PRISM', 'solved'))
    assert judged(c, bare, stores[0]).number == judged(c, stores[0]).number
    assert judged(c, bare).number is None and 'PRISM' in judged(c, bare).lack

def test_claims_have_a_column_of_puzzles(stores, tmp_path):
    texts = read(made_up(tmp_path / 'texts'))
    with_, without = claims(texts, stores), claims(texts)
    assert [row[:6] for row in with_.rows] == without.rows and len(with_.head) == 8
    there = {row[0]: row[6:] for row in with_.rows}
    assert sum(v != (None, None) for v in there.values()) == len(ON_PUZZLES) < len(CLAIMS)
    assert there['NAVIRA-det achieves lower perplexity than PRISM.'][1] == 'does not hold'
    assert there['Remasking by learned quality lowers the perplexity of the backbone.'][1] == 'holds'

def test_claims_of_puzzles_want_what_those_of_texts_want():
    "Lower perplexity is more solved: the side turns round; overlaps and re-selection are the same quantity."
    for c in CLAIMS:
        if c.on_puzzles is None: continue
        same = c.on_puzzles.how.startswith('the same') or 'collapse' in c.text or 'entropy than' in c.text
        assert c.on_puzzles.side == (c.side if same else -c.side), c.text

def test_equal_remasks(stores):
    r = stores[0]
    found = judged(asked('', '', at_equal('remasked', 'PRISM', 'NAVIRA-det', 'solved')), r).number
    x, y = (np.array([[p.remasked[0], p.solved[0]] for p in [r.point('MDLM backbone', F), *r.at(n, 8)]]).T
            for n, F in (('PRISM', 8), ('NAVIRA-det', 4)))
    at = np.linspace(max(x[0][0], y[0][0]), min(x[0][-1], y[0][-1]), 50)[12:38]
    want = np.mean(np.interp(at, *y) - np.interp(at, *x))
    assert found.value == pytest.approx(points(want), abs=1.5)

def test_tables_and_figures(stores, tmp_path):
    t = solved_table(stores[0])
    assert t.head == ('policy', 'puzzles', '1', '2', '4', '8') and len(t.rows) == 7
    assert {row[0] for row in t.rows} >= {'backbone', 'prism', 'navira:tau=.2'}
    assert [row[2] for row in t.rows if row[0] == 'navira-det'] == [None]
    assert len(solved_curves(stores).axes) == 2
    assert dials(stores[0], 8).axes[2].lines
    q = questions(stores)
    assert len(q.rows) == len(QUESTIONS) and q.head[2:4] == ('sudoku-50', 'sudoku-25')
    with pytest.raises(Missing): questions([])
    with pytest.raises(Missing, match='8 forwards'): dials(read(made_up(tmp_path / 'x', dict(task='sudoku-35', n=20,
                                                          entries=[dict(policy='backbone')]), length=81)), 8)
    files = {p.name for p in report(stores[0], tmp_path / 'report')}
    assert files >= {'report.md', 'solved.md', 'solved-curves.png', 'questions.tex', 'dials.svg', 'grid.md'}
    assert 'table-1.md' not in files

def test_texts_are_not_solved(tmp_path):
    r = read(made_up(tmp_path / 'texts'))
    with pytest.raises(Missing, match='none is right or wrong'): solved_table(r)

@pytest.mark.parametrize('seed', range(3))
def test_what_is_written_after_a_token_left(seed):
    "Against loops over every pair of cells."
    rng, s = np.random.default_rng(seed), NAMES['sudoku:2x3']
    right, T, n = random_grids(s, 3, rng), 4, 3
    x = rng.integers(0, s.n + 1, (T + 1, n, s.cells)).astype(np.int32)
    gone, new = rng.random((2, T, n, s.cells)) < .1
    blank = torch.full((T, n, s.cells), torch.nan)
    trace = Trace(*map(torch.from_numpy, (x, gone, new)), blank, torch.full((T, n), torch.nan), s.n,
                  torch.zeros(n, s.cells, dtype=torch.bool))
    want = []
    for t in range(T):
        for b in range(n):
            for i in np.flatnonzero(gone[t, b]):
                for j in np.flatnonzero(new[t, b] & ~gone[t, b]):
                    if i == j or not (s.units_of[:, i] == s.units_of[:, j]).any(): continue
                    was, now = x[t, b, i], x[t + 1, b, j]
                    want.append((now == was, right[b, j] == was, now == right[b, j], was != right[b, i], b))
    got = after_leaving(s, trace, right)
    assert sorted(map(tuple, np.stack(list(got.values()), 1).tolist())) == sorted(tuple(map(int, w)) for w in want)
