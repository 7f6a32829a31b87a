"""`navira solve`, and `navira compare --task`, as a user meets them."""
import json

import pytest

from helpers.cli import said
from helpers.grids import grid_folder  # noqa: F401

PUZZLE = '53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79'

@pytest.mark.parametrize('puzzle, what', [
    (PUZZLE[:80], '80 cells; expected 81'), (PUZZLE.replace('7', 'x', 1), "row 1, column 5: 'x'"),
    ('55' + PUZZLE[2:], 'row 1, column 2: 5 stands in row 1, column 1 already; expected every digit once in a row'),
    ('12345678.' + '.' * 71 + '9', 'this puzzle has no solution'), ('', '0 cells; expected 81')])
def test_bad_puzzles(puzzle, what, capsys):
    from navira.cli import main
    with pytest.raises(SystemExit) as e: main(['solve', puzzle, '--model', 'no/such'])
    printed = capsys.readouterr()
    assert e.value.code == 2 and what in printed.err and len(printed.err.strip().splitlines()) == 1

def test_solve(grid_folder, capsys, tmp_path):  # noqa: F811
    "A model that knows nothing says so, with exit code 1, and one blank it cannot miss at last"
    args = ['solve', '.' * 16, '--model', str(grid_folder), '--budget', '4', '-n', '3']
    code, printed = said(capsys, *args, '--replay', str(tmp_path / 'r.html'))
    assert code == 1 and 'not solved in 3 tries, each in 4 forward passes' in printed.out
    assert '--budget 16' in printed.out
    assert '"boxes":[2,2]' in (tmp_path / 'r.html').read_text()
    code, printed = said(capsys, *args, '--json')
    facts = json.loads(printed.out.splitlines()[0])
    assert code == 1 and not facts['solved'] and facts['contradictions'] > 0 and len(facts['grid']) == 16
    tries = ['-n', '64', '--policy', 'backbone', '--set', 'top_p=1.']
    code, printed = said(capsys, 'solve', '1234341221434.21', '--model', str(grid_folder), *tries)
    assert not code and ' of 64 tries' in printed.out and '4 3 | 2 1' in printed.out

@pytest.mark.parametrize('seed', range(3))
def test_a_puzzle_is_tried_until_it_is_solved(grid_folder, capsys, seed):  # noqa: F811
    "Its try is the first that is right of as many side by side; one that stays unsolved has had all 16"
    how = ['--model', str(grid_folder), '--policy', 'backbone:top_p=1.', '--seed', str(seed), '--json']
    until, every = (json.loads(said(capsys, 'solve', '12.4341221.34.21', *how, *n)[1].out) for n in ([], ['-n', '16']))
    assert until['solved'] == every['solved']
    assert not until['solved'] or (until['grid'], until['sample']) == (every['grid'], every['sample'])
    assert until['tries'] == (every['sample'] + 1 if every['solved'] else 16)

@pytest.mark.parametrize('how', ['typed', 'file', 'drawn', 'stdin'])
def test_several_puzzles(grid_folder, capsys, tmp_path, monkeypatch, how):  # noqa: F811
    import io
    full, open_ = '1234341221434321', '1234341221434.21'
    (tmp_path / 'two.txt').write_text(f'{full}\n\n{open_}\n')
    (tmp_path / 'one.txt').write_text('1 2 | 3 4\n3 4 | 1 2\n----+----\n2 1 | 4 3\n4 . | 2 1\n')
    monkeypatch.setattr('sys.stdin', io.StringIO(f'{full}\n{open_}\n'))
    given = dict(typed=[full, open_], file=[str(tmp_path / 'two.txt')], stdin=['-'],
                 drawn=[full, str(tmp_path / 'one.txt')])[how]
    easy = ['-n', '64', '--policy', 'backbone', '--set', 'top_p=1.']
    code, printed = said(capsys, 'solve', *given, '--model', str(grid_folder), *easy)
    assert not code and '2 of 2 puzzles solved' in printed.out and '4 3 | 2 1' in printed.out

@pytest.mark.parametrize('given, what', [
    (['no/such.txt'], 'no/such.txt: not found'), ([PUZZLE, PUZZLE[:80]], 'puzzle 2: 80 cells'), (['-'], '0 cells')])
def test_what_is_no_puzzle_is_named(given, what, capsys, monkeypatch):
    import io
    from navira.cli import main
    monkeypatch.setattr('sys.stdin', io.StringIO(''))
    with pytest.raises(SystemExit) as e: main(['solve', *given, '--model', 'no/such'])
    assert e.value.code == 2 and what in capsys.readouterr().err

def test_help_names_the_policy_that_solve_takes(capsys):
    _, printed = said(capsys, 'solve', '--help')
    assert 'p2' in printed.out and 'navira-piecewise' not in printed.out

def test_nothing_left(grid_folder, capsys):  # noqa: F811
    code, printed = said(capsys, 'solve', '1234341221434321', '--model', str(grid_folder))
    assert not code and 'nothing is left to solve' in printed.out

def test_another_model(grid_folder, capsys):  # noqa: F811
    from navira.cli import main
    with pytest.raises(SystemExit) as e: main(['solve', PUZZLE, '--model', str(grid_folder)])
    wanted = 'this model writes grids with boxes of 2 x 2; expected one of grids with boxes of 3 x 3'
    assert e.value.code == 2 and wanted in capsys.readouterr().err

def test_compare_on_a_task(grid_folder, capsys, tmp_path):  # noqa: F811
    how = ['--policies', 'backbone,prism', '-n', '9', '--budgets', '2,4', '--out', str(tmp_path), '--show', '1']
    code, printed = said(capsys, 'compare', '--task', 'sudoku:2x2-12', '--model', str(grid_folder), *how)
    assert not code and 'solved' in printed.out and '-+-' in printed.out
    made = json.loads((tmp_path / 'compare.json').read_text())
    assert len(made['cells']) == 4
    assert all(0 <= c['solved_lo'] <= c['solved'] <= c['solved_hi'] <= 1 for c in made['cells'])
    assert (tmp_path / 'compare.png').stat().st_size > 10_000
    assert '"boxes":[2,2]' in (tmp_path / 'replay.html').read_text()

def test_compare_shows_the_first_puzzle_that_tells_two_apart(grid_folder, capsys, tmp_path):  # noqa: F811
    import re
    import numpy as np
    from helpers.grids import four
    from navira.evaluation.tasks import puzzles
    from navira.tasks.sudoku import is_solved
    how = ['--policies', 'backbone:top_p=1,mask-predict', '-n', '60', '--budgets', '2', '--out', str(tmp_path)]
    code, printed = said(capsys, 'compare', '--task', 'sudoku:2x2-14', '--model', str(grid_folder), *how)
    k, worst, best = re.search(r'Puzzle (\d+), the first that (\S+) gets wrong and (\S+) right', printed.out).groups()
    right = {c['label']: is_solved(four, np.array([[int(d) - 1 for d in t] for t in c['texts']]),
                                   puzzles(four, 14, 0, 60))
             for c in json.loads((tmp_path / 'compare.json').read_text())['cells']}
    apart = ~right[worst] & right[best]
    assert not code and apart.argmax() == int(k) and apart[int(k)]
    assert right[worst].mean() == min(v.mean() for v in right.values())
    assert right[best].mean() == max(v.mean() for v in right.values())
    assert f'sample {k}' in (tmp_path / 'replay.html').read_text()
