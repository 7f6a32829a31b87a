"Tables, figures and the report, of committed stores and of a small one."

import numpy as np
import pytest

from navira.experiments.paper import (
    grid, over_budgets, overlaps, passes, report, table1, table2)
from navira.experiments.measure import evaluate
from navira.experiments.run import run
from navira.experiments.results import frame, main_budget, points, tables
from helpers.experiments import home, judge, one_thread_each  # noqa: F401
from order import root

@pytest.fixture(scope='module')
def small(): return points(frame(root/'results'/'small'))

def test_the_larger_model_is_read_at_its_usual_nucleus():
    large = points(frame(root/'results'/'smollm2'))
    t = tables(large)
    assert t.top_p['backbone', 64] == .9 and t.eta['prism', 64] == .08
    assert main_budget(large) == 64

def test_tables_hold_what_the_paper_printed(small):
    rows = table1(small).rows.set_index(['passes', 'policy'])
    assert rows.loc[(128, 'navira-det')].iloc[-2:].tolist() == ['1.94', '2.91']
    assert rows.loc[(16, 'remdm')].steps == 16 and len(table2(small).rows) == 6
    assert len(passes(small).rows) == 6

def test_overlap_is_of_equal_steps(small):
    T, n, means = overlaps(small)
    assert (T, n) == (128, 100) and 0 < means[('prism', 'navira-det'), 'both']['jaccard'][0] < 1

def test_a_policy_of_a_readers_own_is_in_figures_as_the_papers_are(small):
    own = small.assign(label=small.label.replace('prism', 'mine'))
    assert tables(own).cell['mine', 64] == tables(small).cell['prism', 64]
    fig = over_budgets(own, ['navira-det', 'mine', 'yours'], 'Mine')
    assert 'Not in this store: yours' in ' '.join(fig.legends[0].get_title().get_text().split())
    mean, papers = passes(own, 'mine').rows.iloc[-1], passes(small).rows.iloc[-1]
    assert mean.tolist()[3:] == papers.tolist()[3:]

def test_no_two_rows_of_a_report_read_alike():
    rows = grid(points(frame(root/'results'/'peers'))).rows
    assert len(rows) > 100 and not rows[['passes', 'policy', 'eta']].duplicated().any()

def test_a_report_says_what_the_store_lacks(home, judge, tmp_path):
    st = evaluate(run(home.sweep, tmp_path/'store', home.model), ['entropy', 'perplexity'], judge)
    p = points(frame(st))
    files = report(p, tmp_path/'report')
    text = files[0].read_text()
    assert files[0].name == 'report.md' and '**Every point**' in text and 'plane.png' in text
    assert all(f.stat().st_size > 100 for f in files)
    assert np.isfinite([v[0] for v in p.log_perplexity]).all()

def test_a_report_of_puzzles_has_no_perplexities(tmp_path):
    text = report(points(frame(root/'results'/'sudoku-0')), tmp_path)[0].read_text()
    assert 'solved (%)' in text and 'plane' not in text
