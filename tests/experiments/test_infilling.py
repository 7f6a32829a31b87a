"Reports of a store of middles."
import shutil

import pytest

from navira.experiments.infilling import ASKED, infilled_table
from navira.experiments.made_up import made_up
from navira.experiments.report import parts, report
from navira.experiments.old_results import METHODS, read

TRIAL = dict(task='infill', real='none.txt', n=20, budgets=[8, 16], hyper=dict(on=0.),
             metrics=['entropy', 'perplexity'],
             entries=[dict(policy='backbone'), dict(policy='prism', eta=.08), dict(policy='fast-dllm')])

@pytest.fixture(scope='module')
def middles(tmp_path_factory): return read(made_up(tmp_path_factory.mktemp('middles')/'store', TRIAL))

def test_a_report_of_middles_begins_with_what_came_back(middles, tmp_path):
    text = report(middles, tmp_path)[0].read_text(encoding='utf-8')
    assert list(parts(middles))[:2] == ['infilled', 'questions']
    assert 'Tokens of the middle that come back' in text and 'What a change is worth in the middle' in text

def test_texts_are_not_asked_about_their_middle(tmp_path):
    texts = read(made_up(tmp_path/'texts'))
    assert 'infilled' not in parts(texts)

def test_a_policy_that_keeps_no_budget_is_starred(middles):
    assert {row[0] for row in infilled_table(middles).rows} == {'backbone', 'prism', 'fast-dllm*'}

def test_the_questions_are_about_methods_of_the_table():
    assert {name for _, a, b in ASKED for name in (a, b)} <= set(METHODS)

def test_what_came_back_is_told_before_anything_was_evaluated(tmp_path):
    store = made_up(tmp_path/'store', TRIAL)
    shutil.rmtree(store.folder/'metrics')
    table = infilled_table(read(store))
    assert all(row[1] is not None and row[-2] is None and row[-1] is not None for row in table.rows)
