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
    (tmp_path / 'grid.toml').write_text(GRID)
    return tmp_path / 'grid.toml'


def test_a_sweep_is_listed_sampled_measured_and_reported(config, tmp_path, capsys):
    store = tmp_path / 'run[/b]'
    _, printed = said(capsys, 'sweep', config, '--store', store, '--dry-run')
    assert '4 cells, 32 texts, at most 192 forward passes' in printed.out
    assert 'plain [/b]' in printed.out
    assert not store.exists()
    for args, sentence in (
        (['sweep', config, '--store', store], f'4 cells in {store}'),
        (['evaluate', store], f'4 cells in {store} are measured'),
        (['evaluate', store, '--compact', tmp_path / 'small'], 'small copy: '),
        (['report', store], f'written: {store}/report/report.md'),
    ):
        code, printed = said(capsys, *args)
        assert not code and sentence in printed.out.replace('\n', ''), printed
    assert 'plain [/b]' in printed.out and '…' not in printed.out
    code, printed = said(capsys, 'sweep', config, '--store', store, '--set', 'batch_size=5')
    assert code == 2 and 'batch_size: 32 in the store, 5 now' in printed.err


def test_a_report_of_too_few_texts_says_so(config, tmp_path, refuses, capsys):
    assert not said(capsys, 'sweep', config, '--store', tmp_path / 's', '--set', 'n=2')[0]
    refuses('at most 2 samples a point, and an interval needs 8', 'report', tmp_path / 's')


@pytest.mark.parametrize(
    'sentence, typed',
    [
        ("did you mean 'small'?", 'sweep smal'),
        ('budgets=()', 'sweep small --set budgets=[]'),
        ('not found', 'evaluate no/such/store'),
        ('n is given twice', 'sweep small --set n=8 --set n=9'),
        ("did you mean 'budgets'?", 'sweep small --set budget=[8]'),
    ],
)
def test_a_mistake_is_named(sentence, typed, refuses):
    refuses(sentence, *typed.split())


def test_a_configuration_nested_without_end(tmp_path, refuses):
    (tmp_path / 'deep.toml').write_text('name = ' + '[' * 20_000)
    refuses('maximum recursion depth', 'sweep', tmp_path / 'deep.toml')
    (tmp_path / 'long.toml').write_text('#' * 2**19)
    refuses('expected at most', 'sweep', tmp_path / 'long.toml')


def test_a_dry_run_says_what_a_run_would(config, tmp_path, capsys):
    code, printed = said(capsys, 'sweep', config, '--dry-run', '--set', 'model=nobody')
    assert code == 2 and 'nobody: not found' in printed.err and '4 cells' in printed.out


def test_a_store_that_is_not_measured_says_so(config, tmp_path, capsys):
    store = tmp_path / 's'
    assert not said(capsys, 'sweep', config, '--store', store)[0]
    assert 'not measured yet' in said(capsys, 'report', store)[1].out


def test_only_a_store_is_offered_for_a_store(refuses, tmp_path):
    (tmp_path / 'small').mkdir()  # of a training run, say
    refuses('expected a folder that `navira sweep` made', 'report', tmp_path / 'smal')
    (tmp_path / 'small' / 'store.json').write_text('{}')
    refuses(f"did you mean '{tmp_path / 'small'}'?", 'report', tmp_path / 'smal')
