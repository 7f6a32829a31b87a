"""From texts and grids to batches: a tokenizer, a corpus on disk, and an order that can be
resumed."""
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.models.checkpoints import MASK
from navira.tasks.sudoku import held_out, is_solved, random_grids, Sudoku, tokenizer_of
from navira.training.data import (
    EOS, encode, epochs, grid_epochs, read_corpus, train_tokenizer)
from helpers.training import LINES, one_thread, table  # noqa: F401

TOK = train_tokenizer(LINES, 300)

# tokens

@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_tokenizer_round_trip(text):
    text = text.encode('utf-8', 'ignore').decode()
    ids = encode(TOK, text + MASK)
    assert TOK.decode(ids.tolist(), skip_special_tokens=False) == text + MASK
    assert not set(ids.tolist()) & {TOK.token_to_id(EOS), TOK.token_to_id(MASK)}

def test_parquet_splits_and_columns(tmp_path):
    table(tmp_path / 'train-00000.parquet', LINES[:5])
    table(tmp_path / 'train-00001.parquet', LINES[5:7] + [None, ' '])
    table(tmp_path / 'validation.parquet', LINES[7:9])
    assert list(read_corpus(tmp_path)) == LINES[:7]
    for data in (tmp_path, tmp_path / 'validation.parquet'):
        assert list(read_corpus(data, split='validation')) == LINES[7:9]
    with pytest.raises(ValueError, match='train-00000.parquet: .*txt'):
        next(read_corpus(tmp_path, text_column='txt'))

def test_corpus_errors(tmp_path):
    (tmp_path / 'books.txt').write_text('a')
    with pytest.raises(FileNotFoundError, match="did you mean .*books.txt'"):
        next(read_corpus(tmp_path / 'book.txt'))
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match='corpus is empty'): next(read_corpus(tmp_path / 'empty'))
    (tmp_path / 'bad.txt').write_bytes(b'good \xff bad')
    (tmp_path / 'cut.parquet').write_bytes(b'PAR1 and no more')
    for name, why in (('bad.txt', 'byte 0xff in position 5'), ('cut.parquet', '')):
        with pytest.raises(ValueError, match=f'{name}: .*{why}'):
            next(read_corpus(tmp_path / name))

def test_datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip('datasets')
    # the Hub's data set: one `train` split of Parquet files with a column `text`
    folder = tmp_path / 'openwebtext'
    folder.mkdir()
    table(folder / 'train-00000-of-00001.parquet', LINES[:4])
    real = datasets.load_dataset
    def hub(name):
        if name != 'Skylion007/openwebtext': raise FileNotFoundError(name)
        return real(str(folder))
    monkeypatch.setattr(datasets, 'load_dataset', hub)
    monkeypatch.chdir(tmp_path)
    assert list(read_corpus('Skylion007/openwebtext')) == LINES[:4]
    with pytest.raises(ValueError, match='as a data set'):
        next(read_corpus('Skylion007/openwebtex'))

# packing and order

@settings(max_examples=30, deadline=None)
@given(st.integers(40, 300), st.integers(2, 9), st.integers(1, 4), st.integers(0, 5))
def test_epochs_cover_each_sequence_at_most_once(n, length, size, seed):
    batch, per_epoch = epochs(np.arange(n), length, size, seed)
    for epoch in range(3):
        x = torch.cat([batch(epoch * per_epoch + i) for i in range(per_epoch)])
        offset = epoch * 37 % length
        assert x.shape == (per_epoch * size, length) and (x.diff(dim=1) == 1).all()
        assert ((x[:, 0] - offset) % length == 0).all() and len(x[:, 0].unique()) == len(x)
        # less than two batches are left out
        assert (n - offset) // length - len(x) <= size
    assert torch.equal(epochs(np.arange(n), length, size, seed)[0](5), batch(5))

# grids

def test_batches_of_grids_are_new_solved_and_a_function_of_their_step():
    s, base = Sudoku(), random_grids(Sudoku(), 50, np.random.default_rng(0))
    def batch(seed, i):
        return grid_epochs(s, base.astype(np.uint32).ravel(), 64, seed)[0](i).numpy()
    batches = [batch(3, i) for i in range(4)]
    for b in batches: assert is_solved(s, b).all() and not held_out(b).any() and b.shape == (64, 81)
    assert (batch(3, 2) == batches[2]).all() and (batch(4, 2) != batches[2]).any()
    assert len(np.unique(np.concatenate([base, *batches]), axis=0)) == 50 + 4 * 64

def test_a_corpus_of_grids_is_solved_and_always_the_same():
    s, tok = Sudoku(2, 2), tokenizer_of(Sudoku(2, 2))
    for split in ('train', 'validation'):
        texts, again = (list(itertools.islice(read_corpus('sudoku:2x2', split=split), 200))
                        for _ in range(2))
        grids = np.array([tok.encode(t).ids for t in texts])
        assert texts == again and is_solved(s, grids).all()
        assert held_out(grids).all() == (split == 'validation')
