"Grids, puzzles and their reading, against plain transcriptions of the rules."

import collections, itertools, math
import numpy as np, pytest
from hypothesis import given, settings, strategies as some
from navira.tasks.sudoku import (
    _candidates,
    contradictions,
    drawn_grid,
    dug,
    emptied,
    held_out,
    is_solved,
    random_draws,
    random_grids,
    read_puzzle,
    shuffled,
    solutions,
    Sudoku,
    symbol_tokenizer,
    unseen,
)

sizes = [Sudoku(2, 2), Sudoku(2, 3), Sudoku(3, 3)]
name = lambda s: f'{s.n}x{s.n}'
each_size = pytest.mark.parametrize('s', sizes, ids=name)
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


def plain_solutions(s, grid):
    "Cell after cell, digit after digit"
    at = next((i for i, d in enumerate(grid) if d == s.n), None)
    if at is None:
        yield tuple(grid)
        return
    for d in range(s.n):
        trial = [*grid[:at], d, *grid[at + 1 :]]
        if not plainly_wrong(s, np.array(trial)):
            yield from plain_solutions(s, trial)


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


@each_size
def test_the_given_cells_must_stay(s):
    rng = np.random.default_rng(0)
    grids = random_grids(s, 6, rng, 64)
    puzzles = emptied(s, grids, s.n, rng)
    assert ((puzzles < s.n).sum(1) == s.n).all() and is_solved(s, grids, puzzles).all()
    other = np.where(puzzles == 0, 1, puzzles)
    assert (is_solved(s, grids, other) == (other == puzzles).all(1)).all()
    assert not is_solved(s, puzzles).any()


# --- solving
@settings(deadline=None, max_examples=40)
@given(seed=seeds, given=some.integers(2, 16), changed=some.booleans())
def test_all_solutions_are_found(seed, given, changed):
    s, rng = Sudoku(2, 2), np.random.default_rng(seed)
    (puzzle,) = emptied(s, random_grids(s, 1, rng, 64), given, rng)
    if changed:
        puzzle[rng.integers(16)] = rng.integers(4)
    plain = {*plain_solutions(s, [*puzzle])} if not plainly_wrong(s, puzzle) else set()
    found = [tuple(g) for g in solutions(s, puzzle)]
    assert len(found) == len(plain) and {*found} == plain

@settings(deadline=None, max_examples=15)
@given(seed=seeds, left=some.integers(6, 15))
def test_a_dug_puzzle_has_one_solution(seed, left):
    s, rng = Sudoku(2, 2), np.random.default_rng(seed)
    (grid,) = random_grids(s, 1, rng, 64)
    puzzle = dug(s, grid, left, rng)
    (only,) = solutions(s, puzzle)
    assert (only == grid).all() and (puzzle < s.n).sum() == left


def test_a_search_may_have_an_end():
    "Proving that this one has no solution takes minutes (norvig.com/sudoku)"
    text = '.....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........'
    with pytest.raises(TimeoutError): next(solutions(Sudoku(), read_puzzle(Sudoku(), text), 3))



@each_size
@settings(deadline=None, max_examples=15)
@given(seed=seeds)
def test_no_solution_is_ruled_out(s, seed):
    rng = np.random.default_rng(seed)
    grids = random_grids(s, 8, rng, 256)
    puzzles = emptied(s, grids, int(rng.integers(s.cells)), rng)
    may, n, dead = _candidates(s, puzzles)
    assert not dead.any()
    assert (may >> grids & 1)[puzzles == s.n].all() and (n[puzzles == s.n] >= 1).all()


# --- random grids
def test_a_draw_is_as_likely_as_its_weight_says():
    s, n = Sudoku(2, 2), 40_000
    grids, log_w = random_draws(s, n, np.random.default_rng(0))
    seen = collections.Counter(map(bytes, grids))
    expected = {bytes(g): n / math.exp(w) for g, w in zip(grids, log_w)}
    assert len(expected) == 288 and sum(expected.values()) == pytest.approx(n)
    chi2 = sum((seen[g] - e) ** 2 / e for g, e in expected.items())
    assert abs(chi2 - 287) < 5 * (2 * 287) ** 0.5


@each_size
def test_equivalent_grids_keep_the_rules_and_the_empty_cells(s):
    rng = np.random.default_rng(4)
    grids = random_grids(s, 50, rng, 512)
    assert is_solved(s, shuffled(s, grids, rng)).all()
    puzzles = shuffled(s, emptied(s, grids, s.n, rng), rng)
    assert ((puzzles < s.n).sum(1) == s.n).all() and not contradictions(s, puzzles).any()
    other = shuffled(s, grids[:1].repeat(200, 0), rng)
    assert len(np.unique(other, axis=0)) > 100


def test_what_is_held_out_depends_on_the_grid_alone():
    grids = random_grids(Sudoku(2, 3), 3000, np.random.default_rng(5))
    out = held_out(grids)
    assert 10 < out.sum() < 100
    assert (held_out(grids[::-1].astype(np.int32))[::-1] == out).all()


# --- bad input
@pytest.mark.parametrize('size', [(4, 4), (3, 2), ('3', 3)])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match='expected one of 2 x 2, 2 x 3, 3 x 3'):
        Sudoku(*size)


good = '53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79'


@pytest.mark.parametrize(
    'text, said',
    [
        (good[:-9], '72 cells; expected 81, 9 rows of 9'),
        ('a' + good[1:], "row 1, column 1: 'a'; expected a digit of 1 to 9"),
        (good[:80] + '²', 'row 9, column 9'),
        (
            '55' + good[2:],
            'row 1, column 1: 5 stands again in its row, column or box',
        ),
    ],
)
def test_a_text_that_is_no_puzzle_is_refused_with_cell_and_rule(text, said):
    with pytest.raises(ValueError, match=said):
        read_puzzle(Sudoku(), text)


@each_size
def test_a_grid_is_a_text_and_back(s):
    tok, grids = symbol_tokenizer(s), unseen(s, 5, np.random.default_rng(0))
    assert held_out(grids).all() and is_solved(s, grids).all()
    for g in grids:
        assert tok.encode(tok.decode(g.tolist())).ids == g.tolist()
        puzzle = emptied(s, g[None], s.cells // 2, np.random.default_rng(1))[0]
        assert (read_puzzle(s, drawn_grid(s, puzzle)) == puzzle).all()
        text = ''.join('.' if d == s.n else str(d + 1) for d in puzzle)
        assert tok.encode(text).ids == puzzle.tolist()
