"Walks: the exact denoiser against enumeration, samples against it, and what is no walk."

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as some

import navira.peers  # noqa: F401
from helpers.grids import novice
from navira.base.noise import Noise
from navira.core import Pass, State
from navira.exact import Distribution
from navira.experiments.results import frame
from navira.experiments.run import run
from navira.experiments.sweep import read_sweep
from navira.joint import JointDenoiser
from navira.models.load import load
from navira.sampling import sample
from navira.tasks.task import task_of
from navira.tasks.walks import Exact, pair_distance, Walks
from navira.training.data import grid_epochs
from navira.training.finetune import finetune
from navira.training.pretrain import train
from navira.training.settings import FinetuneConfig, read_config, SudokuConfig, TrainConfig

seeds = some.integers(0, 2**32)


def texts_of(w):
    return np.array([*itertools.product(range(w.nodes), repeat=w.length)])


def distribution(w):
    every = texts_of(w)
    return Distribution.of(torch.from_numpy(np.exp(w.log_p(every))), torch.from_numpy(every))


# --- the distribution
@pytest.mark.parametrize('nodes, length', [(5, 2), (5, 4), (7, 3)])
def test_the_probabilities_of_all_texts_sum_to_one_and_give_those_of_pairs(nodes, length):
    w = Walks(nodes, length, seed=3)
    every = texts_of(w)
    p = np.exp(w.log_p(every))
    assert p.sum() == pytest.approx(1)
    for i in range(length):
        pair = every[:, i] * nodes + every[:, (i + 1) % length]
        np.testing.assert_allclose(np.bincount(pair, p, nodes**2), w.pairs, atol=1e-12)


def test_a_walk_is_a_text_with_an_edge_at_each_step():
    w = Walks(7, 3)
    every = texts_of(w)
    plain = [all((a - b) % 7 in (1, 2, 5, 6) for a, b in zip(x, np.roll(x, 1))) for x in every]
    assert (w.solved(torch.from_numpy(every)) == plain).all() and 0 < sum(plain) < len(plain)
    assert np.exp(w.log_p(every))[plain].sum() > 0.999
    assert not w.solved(torch.tensor([[0, 1, 7], [7, 7, 7]])).any()


def test_samples_follow_the_distribution():
    w = Walks(5, 3)
    x = w.draw(50_000, np.random.default_rng(0))
    exact = distribution(w)
    likely = Distribution({k: v for k, v in exact.items() if v > 1e-4})
    assert likely.holds(torch.from_numpy(x[w.solved(torch.from_numpy(x))]))


# --- the exact denoiser
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_the_denoiser_is_what_enumeration_gives_for_any_text_and_masks(seed):
    "Also where no walk agrees with what is visible"
    rng = np.random.default_rng(seed)
    w = Walks(int(rng.integers(5, 7)), int(rng.integers(2, 5)), seed=seed % 7)
    every = texts_of(w)
    p = np.exp(w.log_p(every))
    x = rng.integers(w.nodes + 1, size=(4, w.length))
    got = w.given(torch.from_numpy(x)).numpy()
    for row, q in zip(x, got):
        for i in range(w.length):
            at = [j for j in range(w.length) if j != i and row[j] < w.nodes]
            fits = p * (every[:, at] == row[at]).all(1)
            expected = np.bincount(every[:, i], fits, w.nodes) / fits.sum()
            np.testing.assert_allclose(q[i, :-1], expected, rtol=1e-7, atol=1e-15)
    assert (got[..., -1] == 0).all()


@settings(max_examples=10, deadline=None)
@given(seed=seeds, by=some.integers(1, 31))
def test_every_place_of_a_walk_is_alike(seed, by):
    x = torch.from_numpy(np.random.default_rng(seed).integers(13, size=(3, 32)))
    w = Walks()
    torch.testing.assert_close(w.given(x.roll(by, 1)), w.given(x).roll(by, 1))


def test_quality_is_the_probability_of_a_token_given_all_others():
    w = Walks()
    model = Exact(w)
    x = w.prompts(0, 3)
    x[:, ::3] = torch.from_numpy(w.draw(3, np.random.default_rng(1)))[:, ::3]
    st = State.start(torch.full_like(x, 12), 12, 4, Noise(0, torch.arange(3)))
    q = Pass(model, st.write(x < 12, x[x < 12], torch.ones(int((x < 12).sum())))).quality(x < 12)
    assert (q.isnan() == (x == 12)).all()
    for i in range(0, 32, 3):
        masked = x.clone()
        masked[:, i] = 12
        p = w.given(masked)[torch.arange(3), i, x[:, i]]
        torch.testing.assert_close(q[:, i].sigmoid(), p)


def test_one_token_a_pass_keeps_the_distribution_unless_the_order_sees_the_draw():
    w = Walks(5, 3)
    likely = Distribution({k: v for k, v in distribution(w).items() if v > 1e-4})
    def written(policy, **hyper):
        x = sample(Exact(w), policy, 3, n=20_000, batch_size=10_000, progress=False, **hyper).tokens
        return x[w.solved(x)]
    assert likely.holds(written('backbone', top_p=1.0))
    assert likely.holds(written('dream-entropy', top_p=1.0, temperature=1.0, eps=0.0))
    assert likely.p_value(written('llada-low-confidence', temperature=1.0)) < 1e-12


def test_midpoints_first_keep_the_distribution_in_a_few_passes():
    small, w = Walks(5, 4), Walks()
    out = sample(Exact(small), 'bisection', 1, n=20_000, batch_size=10_000, progress=False)
    assert (out.n_forward == 3).all() and distribution(small).holds(out.tokens)
    out = sample(Exact(w), 'bisection', 1, n=400, progress=False)
    assert (out.n_forward == 6).all() and w.solved(out.tokens).mean() > 0.97
    assert pair_distance(w, out.tokens.numpy()) < 0.05


def test_shadows_and_dependence_are_those_of_the_enumerated_joint():
    w = Walks(5, 3)
    exact, p = Exact(w), torch.from_numpy(np.exp(w.log_p(texts_of(w))))
    joint = JointDenoiser(p.view(5, 5, 5))
    x = torch.cartesian_prod(*[torch.arange(6)] * 3)
    torch.testing.assert_close(exact.attending(x)[1], joint.attending(x)[1])
    where = x < 5
    got = exact.shadow(x, where).left_out(where)
    torch.testing.assert_close(got, joint.shadow(x, where).left_out(where))


# --- total variation
def test_total_variation_is_that_of_the_shares_of_pairs():
    w, x = Walks(5, 3), np.random.default_rng(0).integers(5, size=(40, 3))
    seen = np.zeros(25)
    for row in x:
        for i in range(3): seen[row[i] * 5 + row[(i + 1) % 3]] += 1 / 120
    larger = np.maximum(seen - w.pairs, 0).sum()     # the largest difference of any event
    assert pair_distance(w, x) == pytest.approx(larger)


def test_exact_samples_come_nearer_the_more_there_are_and_others_do_not():
    w, rng = Walks(), np.random.default_rng(2)
    few, many = (np.mean([pair_distance(w, w.draw(n, rng)) for _ in range(8)]) for n in (50, 5000))
    assert many < 0.01 < few < 0.15
    other = Walks(seed=1)
    expected = np.abs(w.pairs - other.pairs).sum() / 2
    assert pair_distance(w, other.draw(5000, rng)) == pytest.approx(expected, abs=0.02)


# --- the task, training, sweeps
TINY = dict(dim=16, blocks=1, heads=2, cond_dim=8, batch_size=16, precision='fp32',
            eval_sequences=32, final_sequences=32)


@pytest.fixture(scope='module')
def networks(tmp_path_factory):
    "By data: trained for a moment; that of walks with a head"
    home, out = tmp_path_factory.mktemp('sources'), {}
    for data in ('walks', 'lists'):
        cfg = read_config(TrainConfig, data=data, out=str(home / data), tokens=8000, **TINY)
        assert isinstance(cfg, SudokuConfig)
        out[data] = train(cfg, progress=False)
    few = dict(head_steps=3, joint_steps=2, batch_size=16, precision='fp32',
               eval_sequences=32, final_sequences=32)
    head = FinetuneConfig(data='walks', model=str(out['walks']), out=str(home / 'head'), **few)
    out['walks'] = finetune(head, progress=False)
    return {data: load(folder) for data, folder in out.items()}


@pytest.mark.parametrize('data, policy, length, mask',
                         [('walks', 'prism', 32, 12), ('lists', 'backbone', 17, 20)])
def test_networks_are_trained_on_walks_and_lists_and_write_their_tasks(
    networks, data, policy, length, mask
):
    model = networks[data]
    assert (model.length, model.mask_id) == (length, mask)
    task = task_of(data, model)
    x = sample(model, policy, 4, prompt=task.prompts(0, 8), progress=False).tokens
    assert task.judge(x)['solved'].shape == (8,)


def test_a_batch_depends_on_seed_and_step_alone():
    w = Walks()
    def batch(seed, step): return grid_epochs(w, np.zeros(64 * 32), 8, seed)[0](step)
    assert batch(0, 5).equal(batch(0, 5)) and w.solved(batch(0, 5)).all()
    assert not batch(0, 5).equal(batch(0, 6)) and not batch(0, 5).equal(batch(1, 5))


def test_a_model_of_other_texts_is_refused(networks, tmp_path):
    for name, model in (('walks', networks['lists']), ('lists', networks['walks']),
                        ('walks', novice())):
        with pytest.raises(ValueError, match=f'`navira train --data {name}`'):
            task_of(name, model)
    cfg = FinetuneConfig(data='walks', out=str(tmp_path / 'run'))
    with pytest.raises(ValueError, match='embedded writes text'):
        finetune(cfg, progress=False)
    with pytest.raises(KeyError, match="did you mean 'walks'"):
        task_of('walk', networks['walks'])
    with pytest.raises(KeyError, match="did you mean 'walks'"):
        task_of('walks-3', networks['walks'])


@pytest.mark.parametrize('size, said', [(dict(nodes=4), 'nodes=4'), (dict(nodes=27), 'at most 26'),
                                        (dict(length=1), 'length=1'), (dict(length=41), 'at most')])
def test_other_sizes_are_refused(size, said):
    with pytest.raises(ValueError, match=said):
        Walks(**size)


def test_a_store_of_walks_goes_on_with_the_same_distribution_only(tmp_path):
    s = read_sweep(dict(task='walks', budgets=[4], n=16, batch_size=8,
                        entries=[dict(policy='backbone'), dict(policy='navira-det')]))
    assert s.metrics == ()
    df = frame(run(s, tmp_path / 'store', Exact(Walks())))
    assert set(df.label) == {'backbone', 'navira-det'} and df.solved.notna().all()
    run(s, tmp_path / 'store', Exact(Walks()))
    with pytest.raises(ValueError, match='fingerprint'):
        run(s, tmp_path / 'store', Exact(Walks(seed=1)))
