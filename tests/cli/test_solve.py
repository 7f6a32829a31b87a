"""`navira solve`, as a user meets it."""
import io
import json

import pytest

from helpers.cli import refuses, said  # noqa: F401
from helpers.grids import grid_folder  # noqa: F401

PUZZLE = '53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79'
OPEN, MORE = '1234341221434.21', '12343412214343.1'

@pytest.mark.parametrize('puzzle, sentence', [
    (PUZZLE[:80], '80 cells; expected 81'),
    ('12345678.' + '.' * 71 + '9', 'this puzzle has no solution'),
    ('x' + PUZZLE[1:], "row 1, column 1: 'x'")])
def test_a_text_that_is_no_puzzle_is_named_before_a_model_is_loaded(puzzle, sentence, refuses):
    refuses('puzzle 2: ' + sentence, 'solve', PUZZLE, puzzle, '--model', 'no/such')

@pytest.mark.parametrize('content, sentence', [
    (None, 'No such file'), (b'', 'no puzzle in it'), (PUZZLE.encode('utf-16'), "'utf-8' codec")])
def test_a_file_that_holds_no_puzzle_is_named(content, sentence, refuses, tmp_path):
    file = tmp_path / 'puzzles.txt'
    if content is not None: file.write_bytes(content)
    refuses(str(file), 'solve', file)
    refuses(sentence, 'solve', file)

def test_a_model_of_other_grids_is_named(grid_folder, refuses):  # noqa: F811
    refuses('this model writes grids with boxes of 2 x 2; expected one of grids with boxes of '
            '3 x 3', 'solve', PUZZLE, '--model', grid_folder)

def test_a_puzzle_that_stays_unsolved_ends_with_exit_code_1(grid_folder, capsys, tmp_path):  # noqa: F811
    args = ['solve', '.' * 16, '--model', grid_folder, '--budget', 4, '-n', 3]
    code, printed = said(capsys, *args, '--replay', tmp_path / 'r.html')
    assert code == 1 and 'not solved in 3 tries of 4 forward passes' in printed.out
    assert '"boxes":[2,2]' in (tmp_path / 'r.html').read_text()
    code, printed = said(capsys, *args, '--json')
    facts = json.loads(printed.out)
    assert code == 1 and not facts['solved'] and len(facts['grid']) == 16

def test_a_puzzle_is_tried_until_it_is_solved(grid_folder, capsys):  # noqa: F811
    "Its try is the first right one of as many side by side; an unsolved one has had all 16"
    how = ['--model', grid_folder, '--policy', 'backbone:top_p=1.', '--json']
    until, every = (json.loads(said(capsys, 'solve', '12.4341221.34.21', *how, *n)[1].out)
                    for n in ([], ['-n', 16]))
    assert until['solved'] == every['solved']
    if until['solved']: assert all(until[k] == every[k] for k in ('grid', 'sample'))
    assert until['tries'] in (1, 4, 16) and until['tries'] > until['sample']

@pytest.mark.parametrize('how', ['typed', 'file', 'stdin'])
def test_several_puzzles(grid_folder, capsys, tmp_path, monkeypatch, how):  # noqa: F811
    # as Notepad writes it, with a byte order mark
    (tmp_path / 'two.txt').write_text(f'\ufeff{OPEN}\n\n{MORE}\n', newline='\r\n')
    monkeypatch.setattr('sys.stdin', io.StringIO(f'\ufeff{OPEN}\n{MORE}\n'))
    puzzles = dict(typed=[OPEN, MORE], file=[tmp_path / 'two.txt'], stdin=['-'])
    easy = ['-n', 64, '--policy', 'backbone:top_p=1.']
    code, printed = said(capsys, 'solve', *puzzles[how], '--model', grid_folder, *easy)
    assert not code and printed.out.count('solved: ') == 2 and '4 3 | 2 1' in printed.out
