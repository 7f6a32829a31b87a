"""`navira solve`, as a user meets it."""

import io, json

import pytest

from helpers.cli import refuses, said  # noqa: F401
from helpers.grids import grid_folder  # noqa: F401

PUZZLE = '53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79'
FULL, OPEN = '1234341221434321', '1234341221434.21'


@pytest.mark.parametrize(
    'puzzle, sentence',
    [
        (PUZZLE[:80], '80 cells; expected 81'),
        ('12345678.' + '.' * 71 + '9', 'this puzzle has no solution'),
        ('no/such.txt', 'no/such.txt: not found'),
    ],
)
def test_a_text_that_is_no_puzzle_is_named(puzzle, sentence, refuses):
    refuses(sentence, 'solve', puzzle, '--model', 'no/such')
    if 'found' not in sentence:
        refuses('puzzle 2: ' + sentence, 'solve', PUZZLE, puzzle)


def test_a_model_of_other_grids_is_named(grid_folder, refuses):  # noqa: F811
    wanted = (
        'this model writes grids with boxes of 2 x 2; expected one of grids with boxes of 3 x 3'
    )
    refuses(wanted, 'solve', PUZZLE, '--model', grid_folder)


def test_a_puzzle_that_stays_unsolved_ends_with_exit_code_1(grid_folder, capsys, tmp_path):  # noqa: F811
    args = ['solve', '.' * 16, '--model', grid_folder, '--budget', 4, '-n', 3]
    code, printed = said(capsys, *args, '--replay', tmp_path / 'r.html')
    assert code == 1 and 'not solved in 3 tries, each in 4 forward passes' in printed.out
    assert '--budget 16' in printed.out and '"boxes":[2,2]' in (tmp_path / 'r.html').read_text()
    code, printed = said(capsys, *args, '--json')
    facts = json.loads(printed.out)
    assert (
        code == 1
        and not facts['solved']
        and facts['contradictions'] > 0
        and len(facts['grid']) == 16
    )


def test_a_puzzle_is_tried_until_it_is_solved(grid_folder, capsys):  # noqa: F811
    "Its try is the first right one of as many side by side; an unsolved one has had all 16"
    how = ['--model', grid_folder, '--policy', 'backbone:top_p=1.', '--json']
    until, every = (
        json.loads(said(capsys, 'solve', '12.4341221.34.21', *how, *n)[1].out)
        for n in ([], ['-n', 16])
    )
    assert until['solved'] == every['solved']
    assert not until['solved'] or (until['grid'], until['sample']) == (
        every['grid'],
        every['sample'],
    )
    assert until['tries'] == (every['sample'] + 1 if every['solved'] else 16)


@pytest.mark.parametrize('how', ['typed', 'file', 'drawn', 'stdin'])
def test_several_puzzles(grid_folder, capsys, tmp_path, monkeypatch, how):  # noqa: F811
    (tmp_path / 'two.txt').write_text(f'{FULL}\n\n{OPEN}\n')
    (tmp_path / 'one.txt').write_text('1 2 | 3 4\n3 4 | 1 2\n----+----\n2 1 | 4 3\n4 . | 2 1\n')
    monkeypatch.setattr('sys.stdin', io.StringIO(f'{FULL}\n{OPEN}\n'))
    puzzles = dict(
        typed=[FULL, OPEN],
        file=[tmp_path / 'two.txt'],
        stdin=['-'],
        drawn=[FULL, tmp_path / 'one.txt'],
    )
    easy = ['-n', 64, '--policy', 'backbone', '--set', 'top_p=1.']
    code, printed = said(capsys, 'solve', *puzzles[how], '--model', grid_folder, *easy)
    assert not code and '2 of 2 puzzles solved' in printed.out and '4 3 | 2 1' in printed.out
    assert 'nothing is left to solve' in printed.out and ' of 64 tries' in printed.out
