"Walks: the exact denoiser against enumeration, samples against it, and networks of them."

import itertools

import numpy as np
import pytest
import torch

from navira.sampler.joint import JointDenoiser
from navira.models.load import load
from navira.sampling import sample
from navira.tasks.task import task_of
from navira.tasks.walks import Exact, Walks
from navira.training.train import train
from navira.training.settings import read_config, TrainConfig


def texts_of(w):
    return np.array([*itertools.product(range(w.nodes), repeat=w.length)])


# --- the exact denoiser


def test_shadows_and_dependence_are_those_of_the_enumerated_joint():
    w = Walks(5, 3)
    exact, p = Exact(w), torch.from_numpy(np.exp(w.log_p(texts_of(w))))
    joint = JointDenoiser(p.view(5, 5, 5))
    x = torch.cartesian_prod(*[torch.arange(6)] * 3)
    torch.testing.assert_close(exact.attending(x)[1], joint.attending(x)[1])
    where = x < 5
    got = exact.shadow(x, where).left_out(where)
    torch.testing.assert_close(got, joint.shadow(x, where).left_out(where))


# --- the task and training
TINY = dict(dim=16, blocks=1, heads=2, cond_dim=8, batch_size=16, precision='fp32',
            eval_sequences=32, final_sequences=32)


def test_a_network_is_trained_on_walks_and_writes_them(tmp_path):
    cfg = read_config(TrainConfig, data='walks', out=str(tmp_path), tokens=8000, **TINY)
    model = load(train(cfg, progress=False))
    assert (model.length, model.mask_id) == (32, 12)
    task = task_of('walks', model)
    x = sample(model, 'backbone', 4, prompt=task.prompts(0, 8), progress=False).tokens
    assert task.judge(x)['solved'].shape == (8,)
    with pytest.raises(ValueError, match='`navira train --data walks`'): task_of('walks', load())


