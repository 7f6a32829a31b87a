"""`navira compare`: what it runs, what it prints, and the files that it writes."""
import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from helpers.cli import net, refuses, run, said  # noqa: F401
from helpers.replay import data_of
from toys import small_lm

QUICK = '-n', 8, '--reference', 'none'

def cells(folder): return json.loads((folder/'compare.json').read_text())

def test_a_comparison_shows_a_table_texts_and_two_policies_side_by_side(run, tmp_path):
    labels = ['backbone', 'prism:eta=.3', 'navira-det:eta=.3']
    args = ['compare', *labels, '--budgets', '4,8', *QUICK, '--out', tmp_path, '--show', 1]
    printed = run(*args)
    assert printed.count('· ') == 3 and '8 texts a point' in ' '.join(printed.split())
    assert [(c['label'], c['budget']) for c in cells(tmp_path)] == [
        (label, budget) for budget in (4, 8) for label in labels]
    for c in cells(tmp_path):
        value, low, high = c['entropy']
        assert low < value < high and 0 < c['run'] <= c['budget']
    data = data_of((tmp_path/'replay.html').read_text())
    assert [p['name'] for p in data['panels']] == labels[::2]
    assert run(*args) == printed     # nothing is sampled again

def test_all_means_all_that_the_model_can_run(tmp_path, capsys, monkeypatch):
    import navira
    model = small_lm(quality_blocks=None)
    words = {f'w{i}': i for i in range(10)} | {'<|mask|>': 10}
    model.tokenizer = Tokenizer(WordLevel(words, unk_token='w0'))
    monkeypatch.setattr(navira, 'load', lambda *a, **how: model, raising=False)
    typed = 'compare --budgets 4 --show 0 all'.split()
    code, _ = said(capsys, *typed, *QUICK, '--out', tmp_path)
    ran = {c['label'] for c in cells(tmp_path)}
    assert not code and {'backbone', 'mdlm', 'remdm-cap'} <= ran
    assert not {'prism', 'navira', 'token-critic'} & ran

@pytest.mark.parametrize('sentence, typed', [
    ('budget=1', 'navira --budgets 1'), ("did you mean 'navira-det'?", 'prism navira-dett'),
    ("policy '16': ", 'prism --budgets 8 16'), ('at least 8 texts', '-n 3'),
    ('are the same cell', 'navira navira:tau=.2')])
def test_a_mistake_is_named_before_anything_is_sampled(sentence, typed, refuses, tmp_path):
    refuses(sentence, 'compare', *typed.split(), '--out', tmp_path)
