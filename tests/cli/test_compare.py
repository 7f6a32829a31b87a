"""`navira compare`: what it runs, what it prints, and the files that it writes."""
from itertools import product

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from navira.experiments.results import frame
from helpers.cli import net, refuses, run, said  # noqa: F401
from helpers.replay import data_of
from toys import small_lm

QUICK = '-n', 8, '--reference', 'none'

def sampled(folder): return frame(next(folder.glob('store-*')))

def test_a_comparison_shows_a_table_texts_and_two_policies_side_by_side(run, tmp_path):
    labels = ['backbone', 'prism:eta=.3', 'navira-det:eta=.3']
    args = ['compare', *labels, '--budgets', '4,8', *QUICK, '--out', tmp_path, '--show', 1]
    printed = run(*args)
    assert printed.count('· ') == 3 and '8 texts a point' in ' '.join(printed.split())
    df = sampled(tmp_path)
    assert {*zip(df.label, df.budget)} == {*product(labels, (4, 8))}
    assert (df.n_forward <= df.budget).all() and (df.entropy > 0).all()
    assert (tmp_path/'compare.png').stat().st_size > 100
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
    ran = {*sampled(tmp_path).label}
    assert not code and {'backbone', 'mdlm', 'remdm-cap'} <= ran
    assert not {'prism', 'navira', 'token-critic'} & ran

@pytest.mark.parametrize('sentence, typed', [
    ('budget=1', 'navira --budgets 1'), ("did you mean 'navira-det'?", 'prism navira-dett'),
    ("policy '16': ", 'prism --budgets 8 16'), ('at least 8', '-n 3'),
    ('are the same cell', 'navira navira:tau=.2')])
def test_a_mistake_is_named_before_anything_is_sampled(sentence, typed, refuses, tmp_path):
    refuses(sentence, 'compare', *typed.split(), '--out', tmp_path)
