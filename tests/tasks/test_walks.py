"Walks: the exact denoiser against enumeration, samples against it, and networks of them."

import itertools

import numpy as np
import pytest
import torch

from navira.sampler.exact import Distribution
from navira.sampler.joint import JointDenoiser
from navira.models.load import load
from navira.sampling import sample
from navira.tasks.task import task_of
from navira.tasks.walks import Exact, Walks
from navira.training.train import train
from navira.training.settings import FinetuneConfig, read_config, TrainConfig


def texts_of(w):
    return np.array([*itertools.product(range(w.nodes), repeat=w.length)])


def distribution(w):
    every = texts_of(w)
    return Distribution.of(torch.from_numpy(np.exp(w.log_p(every))), torch.from_numpy(every))


# --- the exact denoiser


def test_one_token_a_pass_keeps_the_distribution_unless_the_order_sees_the_draw():
    w = Walks(5, 3)
    likely = Distribution({k: v for k, v in distribution(w).items() if v > 1e-4})
    def written(policy, **hyper):
        x = sample(Exact(w), policy, 3, n=20_000, batch_size=10_000, progress=False, **hyper).tokens
        return x[w.solved(x)]
    assert likely.holds(written('backbone', top_p=1.0))
    assert likely.holds(written('dream-entropy', top_p=1.0, temperature=1.0, eps=0.0))
    assert likely.p_value(written('llada-low-confidence', temperature=1.0)) < 1e-12


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


def test_a_model_of_other_texts_is_not_trained_on_it(tmp_path):
    cfg = FinetuneConfig(data='walks', out=str(tmp_path))
    with pytest.raises(ValueError, match='embedded writes text'): train(cfg, progress=False)
