"Tasks: prompts and judges."

from pathlib import Path

import numpy as np
import pytest

from helpers.grids import Exact
from navira.models.dit import MaskedLM
from navira.models.layers import Config
from navira.sampling import sample
from navira.tasks.task import task_of, until_solved
from navira.training.data import train_tokenizer


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


def text_writer():
    "A model of the toy language, and its words."
    words = (Path(__file__).parents[1] / 'toy' / 'train.txt').read_text().split()
    tok = train_tokenizer([' '.join(words)], 320)
    config = Config(vocab_size=320, model_length=32, hidden_dim=32, cond_dim=16, n_blocks=1,
                    n_heads=2)
    return MaskedLM(config, tok).eval(), words


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
