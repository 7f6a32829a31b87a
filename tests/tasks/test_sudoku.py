"Grids and puzzles against plain transcriptions of the rules."

import itertools
import numpy as np, pytest
from hypothesis import given, settings, strategies as some
from navira.tasks.sudoku import (
    contradictions,
    held_out,
    is_solved,
    random_grids,
    Sudoku,
)

sizes = [Sudoku(2, 2), Sudoku(2, 3), Sudoku(3, 3)]
each_size = pytest.mark.parametrize('s', sizes, ids=repr)
seeds = some.integers(0, 2**32)


def unit_sets(s):
    "The cells of all rows, columns and boxes, as one says it"
    n, cell = s.n, lambda r, c: r * s.n + c
    yield from ([cell(r, c) for c in range(n)] for r in range(n))
    yield from ([cell(r, c) for r in range(n)] for c in range(n))
    for top, left in itertools.product(range(0, n, s.height), range(0, n, s.width)):
        yield [cell(top + i, left + j) for i in range(s.height) for j in range(s.width)]


def plainly_solved(s, grid):
    return all({*grid[unit]} == {*range(s.n)} for unit in unit_sets(s))


def plainly_wrong(s, grid):
    pairs = ((a, b) for unit in unit_sets(s) for a, b in itertools.permutations(unit, 2))
    return {a for a, b in pairs if grid[a] == grid[b] < s.n}


# --- the rules
@each_size
@settings(deadline=None, max_examples=20)
@given(seed=seeds, changed=some.integers(0, 3))
def test_solved_and_contradicting_grids_are_what_the_rules_say(s, seed, changed):
    rng = np.random.default_rng(seed)
    (grid,) = random_grids(s, 1, rng, 64)
    for _ in range(changed):
        grid[rng.integers(s.cells)] = rng.integers(s.n + 1)
    assert is_solved(s, grid[None])[0] == plainly_solved(s, grid)
    assert {*np.flatnonzero(contradictions(s, grid[None])[0])} == plainly_wrong(s, grid)


# --- random grids


def test_what_is_held_out_depends_on_the_grid_alone():
    grids = random_grids(Sudoku(2, 3), 3000, np.random.default_rng(5))
    out = held_out(grids)
    assert 10 < out.sum() < 100
    assert (held_out(grids[::-1].astype(np.int32))[::-1] == out).all()
