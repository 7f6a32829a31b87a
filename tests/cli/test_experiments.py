"""`navira sweep`, `evaluate` and `report`, one after the other, and what they refuse."""
import pytest

from helpers.cli import refuses, said  # noqa: F401

GRID = """
n = 8
budgets = [4, 8]
length = 16
metrics = ["entropy", "repetition"]
device = "cpu"
[[entries]]
policy = "backbone"
label = "plain [/b]"
[[entries]]
policy = "prism"
eta = 0.3
"""

@pytest.fixture
def config(tmp_path):
    (tmp_path/'grid.toml').write_text(GRID)
    return tmp_path/'grid.toml'

def test_a_sweep_is_listed_sampled_measured_and_reported(config, tmp_path, capsys, refuses):
    store = tmp_path/'run[/b]'
    for args, sentence in (
        (['sweep', config, '--dry-run'], '4 cells, 32 texts, at most 192 forward passes'),
        (['sweep', config, '--store', store], f'4 cells in {store}'),
        (['report', store], 'not measured yet'),
        (['evaluate', store], f'4 of 4 cells in {store} are measured'),
        (['evaluate', store, '--compact', tmp_path/'small'], 'small copy: '),
        (['report', store], f'written: {store}/report/report.md'),
    ):
        code, printed = said(capsys, *args)
        assert not code and sentence in printed.out.replace('\n', ''), printed
    assert 'plain [/b]' in printed.out and '…' not in printed.out
    refuses('batch_size: 32 in the store, 5 now', 'sweep', config, '--store', store, '--set',
            'batch_size=5')

def test_a_report_of_too_few_texts_says_so(config, tmp_path, refuses, capsys):
    assert not said(capsys, 'sweep', config, '--store', tmp_path/'s', '--set', 'n=2')[0]
    refuses('at most 2 samples a point, and an interval needs 8', 'report', tmp_path/'s')

@pytest.mark.parametrize('sentence, typed', [
    ('n is given twice', 'sweep small --set n=8 --set n=9'),
    ("base_url='': expected an address", 'judge no/such/store'),
    ("data='no.jsonl': not found", 'judge --base-url http://host/v1 --ladder no.jsonl'),
    ('1 texts for a ladder: expected more than 16',
     'judge --base-url http://host/v1 --ladder README.md')])
def test_a_mistake_is_named(sentence, typed, refuses): refuses(sentence, *typed.split())

def test_a_configuration_without_end(tmp_path, refuses):
    for text, sentence in (('name = ' + '[' * 20_000, 'maximum recursion depth'),
                           ('.'.join('a' * 20_000) + ' = 1', 'more than 300 dots'),
                           ('#' * 2**19, 'expected at most')):
        (tmp_path/'long.toml').write_text(text)
        refuses(sentence, 'sweep', tmp_path/'long.toml')

def test_a_dry_run_says_what_a_run_would(config, capsys):
    code, printed = said(capsys, 'sweep', config, '--dry-run', '--set', 'model=nobody')
    assert code == 2 and 'nobody: not found' in printed.err and '4 cells' in printed.out
