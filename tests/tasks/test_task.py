"Tasks: prompts and judges."

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as some

import navira.peers  # noqa: F401
from helpers.grids import Exact, four, novice
from navira.models.dit import MaskedLM
from navira.models.layers import Config
from navira.sampling import sample
from navira.tasks.sudoku import held_out, is_solved, puzzles, solutions, Sudoku
from navira.tasks.task import task_of, until_solved
from navira.training.data import train_tokenizer


@given(some.integers(0, 700), some.integers(1, 300), some.integers(0, 15))
@settings(max_examples=20, deadline=None)
def test_a_puzzle_has_a_number(first, n, cells):
    "Whatever else is asked for with it; each has the cells that were asked for."
    some_of = puzzles(four, cells, first, n)
    assert some_of.shape == (n, 16) and ((some_of < 4).sum(1) == cells).all()
    np.testing.assert_array_equal(
        some_of[n // 2 :], puzzles(four, cells, first + n // 2, n - n // 2)
    )


def test_puzzles_come_from_unseen():
    s = Sudoku(2, 3)
    for p in puzzles(s, 30, 0, 12):
        assert any(held_out(np.array([g]))[0] for g in solutions(s, p))


def test_a_solution_keeps_the_givens():
    task = task_of('sudoku:2x2-8', novice())
    x = task.prompts(0, 50)
    right = torch.stack([torch.from_numpy(next(solutions(four, p))) for p in x.numpy()])
    assert task.solved(right).all() and not task.solved(x).any()
    other = (right + 1) % 4  # solved, and another grid
    assert is_solved(four, other.numpy()).all() and not task.solved(other).any()
    assert task.solved(right[30:], 30).all()


def test_exact_model_draws_all_grids_alike():
    "Grids from nothing are uniform."
    out = sample(Exact(), 'backbone', 16, n=1152, top_p=1.0, progress=False)
    assert task_of('sudoku:2x2-0', Exact()).solved(out.tokens).all()
    _, counts = np.unique(out.tokens.numpy(), axis=0, return_counts=True)
    chi2 = ((counts - 4) ** 2 / 4).sum() + 4 * (288 - len(counts))
    assert abs(chi2 - 287) < 5 * (2 * 287) ** 0.5


def test_until_solved_is_the_first_time():
    task = task_of('sudoku:2x2-6', Exact())
    out = sample(Exact(), 'mask-predict', 8, prompt=task.prompts(0, 64), trace=True, progress=False)
    steps, gone = until_solved(task, out.trace)
    for row in range(64):
        right = [j for j in range(9) if task.solved(out.trace.x[j, row : row + 1].long(), row)[0]]
        assert steps[row] == (right[0] if right else -1)
        assert gone[row] == out.trace.remasked[: steps[row] if right else 8, row].sum()


@pytest.mark.parametrize(
    'name, error, match',
    [
        ('sudoko-35', KeyError, "did you mean 'sudoku'"),
        ('sudoku-81', ValueError, 'at most 80'),
        (
            'sudoku-35',
            ValueError,
            'grids with boxes of 2 x 2; expected one of grids with boxes of 3 x 3',
        ),
        ('infill', ValueError, 'needs text'),
    ],
)
def test_a_wrong_task_is_named(name, error, match):
    with pytest.raises(error, match=match):
        task_of(name, novice())


def text_writer():
    "A model of the toy language, and its words."
    words = (Path(__file__).parents[1] / 'toy' / 'train.txt').read_text().split()
    tok = train_tokenizer([' '.join(words)], 320)
    config = Config(vocab_size=320, model_length=32, hidden_dim=32, cond_dim=16, n_blocks=1,
                    n_heads=2)
    return MaskedLM(config, tok).eval(), words


def test_a_text_model_is_refused():
    writer, _ = text_writer()
    with pytest.raises(ValueError, match='this model writes text'):
        task_of('sudoku-35', writer)


def test_infilling_hides_the_middle_third(tmp_path):
    model, words = text_writer()
    paragraphs = [' '.join(words[i:i + 150]) for i in range(0, 30_000, 150)]
    (tmp_path / 'long.txt').write_text('\n'.join(paragraphs))
    task = task_of('infill', model, str(tmp_path / 'long.txt'))
    x = task.prompts(2, 5)
    free = x == model.mask_id
    assert (free.sum(1) == 11).all() and (free[:, 10:21]).all()
    np.testing.assert_array_equal(x, task.prompts(0, 7)[2:])
    judged = task.judge(sample(model, 'backbone', 4, prompt=x, progress=False).tokens, 2)
    assert set(judged) == {'recovered', 'middle', 'middle_real'} and (judged['recovered'] < 1).all()
    with pytest.raises(ValueError, match='expected at least 10000'):
        task.prompts(0, 10_000)


