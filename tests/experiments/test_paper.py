"Tables, figures and the report, of committed stores and of a small one."
import pytest

from navira.experiments.measure import evaluate
from navira.experiments.paper import over_budgets, passes, report
from navira.experiments.results import frame, points
from navira.experiments.run import run
from helpers.experiments import home, judge, one_thread_each  # noqa: F401
from order import root

def stored(name): return points(frame(root/'results'/name))

@pytest.fixture(scope='module')
def small(): return stored('small')


def test_a_policy_of_a_readers_own_is_in_figures_as_the_papers_are(small):
    own = small.assign(label=small.label.replace('prism', 'mine'))
    fig = over_budgets(own, ['navira-det', 'mine', 'yours'], 'Mine')
    assert 'Not in this store: yours' in ' '.join(fig.legends[0].get_title().get_text().split())
    mean, papers = passes(own, 'mine').rows.iloc[-1], passes(small).rows.iloc[-1]
    assert mean.tolist()[3:] == papers.tolist()[3:]

def test_a_report_says_what_the_store_lacks(home, judge, small, tmp_path):
    st = evaluate(run(home.sweep, tmp_path/'store', home.model), ['entropy', 'perplexity'], judge)
    files = report(points(frame(st)), tmp_path/'report')
    text = files[0].read_text()
    assert files[0].name == 'report.md' and '**Every point**' in text and 'curves.png' in text
    assert all(f.stat().st_size > 100 for f in files) and 'Table 1' not in text
    text = report(small[~small.trace], tmp_path)[0].read_text()
    assert '- table-2: traces of' in text and '**Table 1' in text

def test_a_report_of_puzzles_has_no_perplexities(tmp_path):
    text = report(stored('sudoku-0'), tmp_path)[0].read_text()
    assert 'solved (%)' in text and 'curves' not in text
