"Tasks: prompts and judges."

import numpy as np
import pytest
import torch

from navira.tasks.task import Infilling


def test_infilling_hides_the_middle_third():
    rows = np.arange(60).reshape(5, 12)
    task, hidden = Infilling('long.txt', 99, rows), rows[2:].copy()
    hidden[:, 4:8] = 99
    assert task.prompts(2, 3).tolist() == hidden.tolist()
    assert (task.judge(torch.from_numpy(rows[2:]), 2)['recovered'] == 1).all()
    with pytest.raises(ValueError, match='expected at least 6'): task.prompts(0, 6)
