"Tasks: prompts and judges."

import numpy as np
import pytest
import torch

from helpers.grids import novice
from navira.sampling import sample
from navira.tasks.task import Infilling
from navira.tasks.task import task_of, until_solved


def test_until_solved_is_the_first_time():
    model = novice()
    task = task_of('sudoku:2x2-14', model)
    out = sample(model, 'mask-predict', 8, prompt=task.prompts(0, 64), trace=True, progress=False)
    steps, gone = until_solved(task, out.trace)
    assert 0 < (steps > 0).sum() < 64
    for row in range(64):
        right = [j for j in range(9) if task.solved(out.trace.x[j, row : row + 1].long(), row)[0]]
        assert steps[row] == (right[0] if right else -1)
        assert gone[row] == out.trace.remasked[: steps[row] if right else 8, row].sum()


def test_infilling_hides_the_middle_third():
    rows = np.arange(60).reshape(5, 12)
    task, hidden = Infilling('long.txt', 99, rows), rows[2:].copy()
    hidden[:, 4:8] = 99
    assert task.prompts(2, 3).tolist() == hidden.tolist()
    assert task.solved(torch.from_numpy(rows[2:]), 2).all()
    with pytest.raises(ValueError, match='expected at least 6'): task.prompts(0, 6)
