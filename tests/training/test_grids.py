"""Training on random grids: the corpus, its batches, a network of grids, a head and a critic for it."""
import json

import numpy as np
import pytest
import torch

import navira
from helpers.training import home, losses, one_thread, trained  # noqa: F401
from navira.models.critic import Critic
from navira.tasks.sudoku import held_out, is_solved, random_grids, Sudoku, tokenizer_of
from navira.training.critic import CriticConfig, train_critic
from navira.training.finetuning import finetune
from navira.training.grids import grid_corpus, Grids
from navira.training.pretraining import train
from navira.training.settings import FinetuneConfig, read_pretraining, SudokuConfig, TrainConfig

TINY = dict(data='sudoku:2x2', tokens=100 * 64 * 16, dim=32, blocks=2, heads=2, cond_dim=8, batch_size=64, lr=5e-3,
            warmup=5, log_every=1, precision='fp32', eval_every=50, eval_sequences=32, checkpoint_every=20)

@pytest.fixture(autouse=True)
def few_grids(monkeypatch):
    from navira.training import grids
    monkeypatch.setattr(grids, '_MANY', dict(train=600, validation=64))

@pytest.fixture(scope='module')
def model(tmp_path_factory):
    "A run on 4 x 4 grids"
    from navira.training import grids
    torch.set_num_threads(1)
    out, kept = tmp_path_factory.mktemp('grids') / 'run', dict(grids._MANY)
    grids._MANY.update(train=600, validation=64)
    try: return train(SudokuConfig(out=str(out), **TINY), progress=False)
    finally: grids._MANY.update(kept)

def test_batches():
    "Solved grids, none of them held out, a function of seed and step; hardly ever one of the corpus"
    s = Sudoku()
    base = random_grids(s, 50, np.random.default_rng(0))
    data = Grids(s, base.astype(np.uint16).ravel(), 64, seed=3)
    batches = [data.batch(i).numpy() for i in range(4)]
    assert all(is_solved(s, b).all() and not held_out(b).any() and b.shape == (64, 81) for b in batches)
    assert (Grids(s, base.astype(np.uint16).ravel(), 64, seed=3).batch(2).numpy() == batches[2]).all()
    assert len(np.unique(np.concatenate([base, *batches]), axis=0)) == 50 + 4 * 64
    assert (Grids(s, base.astype(np.uint16).ravel(), 64, seed=4).batch(2).numpy() != batches[2]).any()

def test_corpus():
    s, tok = Sudoku(2, 3), tokenizer_of(Sudoku(2, 3))
    for split, n in (('train', 600), ('validation', 64)):
        texts = list(grid_corpus(s, 'sudoku:2x3', split))
        grids = np.array([tok.encode(t).ids for t in texts])
        assert grids.shape == (n, 36) and is_solved(s, grids).all() and texts == list(grid_corpus(s, 'x', split))
        assert held_out(grids).all() == (split == 'validation')

def test_a_run_on_grids(model):
    "It loads, writes digits, has learnt something, and its record says where it comes from"
    lm, run = navira.load(model), model.parent
    assert lm.config.boxes == (2, 2) and lm.length == 16 and lm.tokenizer.decode([0, 1, 2, 3]) == '1234'
    losses_ = [v[0] for _, v in sorted(losses(run).items())]
    assert np.mean(losses_[-20:]) < 1.1 < np.log(4) - .2 < np.mean(losses_[:20])
    assert np.load(run / 'train.npy').shape == (600 * 16,) and np.load(run / 'validation.npy').shape == (64 * 16,)
    record = json.loads((model / 'training.json').read_text())
    assert record['network']['boxes'] == [2, 2] and record['nelbo']['chars_per_token'] == 1
    text = navira.sample(lm, 'backbone', 4, seed=1, progress=False)[0]
    assert len(text) == 16 and set(text) <= set('1234')

def test_resumed_is_undisturbed(model, tmp_path):
    cfg = SudokuConfig(out=str(tmp_path / 'again'), **TINY)
    train(cfg, progress=False, stop=45)
    train(read_pretraining(out=str(tmp_path / 'again')), progress=False)
    assert losses(tmp_path / 'again') == losses(model.parent)

def test_head_and_critic(model, tmp_path):
    few = dict(data='sudoku:2x2', model=str(model), batch_size=8, eval_every=10, eval_sequences=32, log_every=1)
    tuned = finetune(FinetuneConfig(out=str(tmp_path / 'head'), head_steps=6, joint_steps=4, **few), progress=False)
    lm = navira.load(tuned)
    assert lm.quality is not None and lm.config.boxes == (2, 2)
    folder = train_critic(CriticConfig(out=str(tmp_path / 'critic'), steps=6, blocks=1, **few), progress=False)
    critic = Critic.load(folder)
    assert critic.config.boxes == (2, 2) and critic.backbone.place is not None
    out = navira.sample(lm, 'token-critic', 4, critic=str(folder), progress=False)
    assert out.tokens.shape == (1, 16)

def test_self_correction(model, tmp_path):
    "On fresh grids; stopped and resumed to the last bit; sampled without a head."
    cfg = lambda name: FinetuneConfig(
        data='sudoku:2x2', model=str(model), out=str(tmp_path / name), objective='proseco', joint_steps=8, batch_size=8,
        eval_every=8, eval_sequences=32, log_every=1, checkpoint_every=4, precision='fp32')
    folder = finetune(cfg('whole'), progress=False)
    finetune(cfg('parts'), progress=False, stop=3)
    finetune(cfg('parts'), progress=False)
    assert losses(tmp_path / 'parts' / 'joint') == losses(tmp_path / 'whole' / 'joint')
    lm = navira.load(folder)
    assert lm.quality is None and lm.config.boxes == (2, 2)
    text = navira.sample(lm, 'backbone', 4, seed=1, progress=False)[0]
    assert len(text) == 16 and set(text) <= set('1234')
    card = (folder / 'README.md').read_text()
    assert '## Self-correction' in card and 'Quality head: it estimates' not in card

def test_words_that_do_not_fit(model, tmp_path, home):  # noqa: F811
    "Grids for a model of texts, and text for one of grids"
    with pytest.raises(ValueError, match="data='sudoku': the model embedded writes text"):
        finetune(FinetuneConfig(data='sudoku', out=str(tmp_path / 'a')), progress=False)
    with pytest.raises(ValueError, match='writes grids with boxes of 2 x 2'):
        finetune(FinetuneConfig(data=str(home), out=str(tmp_path / 'b'), model=str(model)), progress=False)
    with pytest.raises(ValueError, match='writes grids with boxes of 2 x 2'):
        train_critic(CriticConfig(data='sudoku', out=str(tmp_path / 'c'), model=str(model)), progress=False)

@pytest.mark.parametrize('given, error, match', [
    (dict(data='sudoku:3x2'), KeyError, 'sudoku:2x'), (dict(data='books.txt'), ValueError, 'expected grids'),
    (dict(length=80), TypeError, 'length'), (dict(dim=0), ValueError, 'dim=0')])
def test_bad_settings(given, error, match):
    with pytest.raises(error, match=match): SudokuConfig(out='o', **given)

def test_kind_by_its_data(tmp_path):
    assert type(read_pretraining(data='sudoku', out='o')) is SudokuConfig
    assert type(read_pretraining(data='sudoku.txt', out='o')) is TrainConfig
    (tmp_path / 'c.toml').write_text('data = "sudoku:2x3"\ndim = 32')
    cfg = read_pretraining(tmp_path / 'c.toml', out='o')
    assert (cfg.length, cfg.vocab_size, cfg.boxes, cfg.dim) == (36, 7, (2, 3), 32)
    with pytest.raises(KeyError, match="setting 'length'"): read_pretraining(data='sudoku', out='o', length=81)
