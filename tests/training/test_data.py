"""From texts and grids to batches: a tokenizer, a corpus on disk, and an order that can be
resumed."""
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.models.checkpoints import MASK
from navira.tasks.sudoku import held_out, is_solved, random_grids, Sudoku, tokenizer_of
from navira.training.data import (
    EOS, Epochs, Grids, encode, encode_corpus, packed, read_corpus, train_tokenizer,
    validation_corpus)
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

def test_tokenizer_ids():
    assert TOK.token_to_id(EOS) == 0 and TOK.token_to_id(MASK) == TOK.get_vocab_size() - 1
    with pytest.raises(ValueError, match='vocab_size=100'): train_tokenizer(LINES, 100)

def test_encoding_is_cached_and_atomic(tmp_path):
    def broken():
        yield LINES[0]
        raise OSError('disk')
    with pytest.raises(OSError): encode_corpus(TOK, broken(), tmp_path / 'a.npy')
    assert not (tmp_path / 'a.npy').exists()
    ids = encode_corpus(TOK, LINES, tmp_path / 'a.npy')
    assert (ids == 0).sum() == len(LINES) and ids[-1] == 0
    (tmp_path / 'a.npy').write_bytes((tmp_path / 'a.npy').read_bytes()[:-7])
    with pytest.raises(ValueError, match='a.npy: damaged'):
        encode_corpus(TOK, LINES, tmp_path / 'a.npy')

def test_parquet_splits_and_columns(tmp_path):
    table(tmp_path / 'train-00000.parquet', LINES[:5])
    table(tmp_path / 'train-00001.parquet', LINES[5:7] + [None])
    table(tmp_path / 'validation.parquet', LINES[7:9])
    assert list(read_corpus(tmp_path)) == LINES[:7] + ['']
    assert list(read_corpus(tmp_path, split='validation')) == LINES[7:9]
    assert list(read_corpus(tmp_path / 'validation.parquet')) == LINES[7:9]
    with pytest.raises(KeyError, match="did you mean 'text'"):
        read_corpus(tmp_path, text_column='txt')

def test_text_patterns(tmp_path, monkeypatch):
    for n in 'ab': (tmp_path / f'{n}.txt').write_text(n)
    monkeypatch.chdir(tmp_path)
    assert list(read_corpus('*.txt')) == ['a', 'b'] == list(read_corpus(tmp_path))

def test_corpus_errors(tmp_path):
    (tmp_path / 'books.txt').write_text('a')
    with pytest.raises(FileNotFoundError, match="did you mean .*books.txt'"):
        read_corpus(tmp_path / 'book.txt')
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match='corpus is empty'): read_corpus(tmp_path / 'empty')
    (tmp_path / 'bad.txt').write_bytes(b'good \xff bad')
    with pytest.raises(ValueError, match=r'bad.txt: not UTF-8 at byte 5 \(0xff\)'):
        read_corpus(tmp_path / 'bad.txt')
    offsets = pa.array([0, 3], pa.int32()).buffers()[1]
    bad = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b'ok\xff')])
    pq.write_table(pa.table({'text': bad}), tmp_path / 'bad.parquet')
    with pytest.raises(ValueError, match='bad.parquet: column .text.: not UTF-8 at byte 2'):
        read_corpus(tmp_path / 'bad.parquet')
    (tmp_path / 'cut.parquet').write_bytes(b'PAR1 and no more')
    with pytest.raises(ValueError, match='cut.parquet: not a readable Parquet file'):
        read_corpus(tmp_path / 'cut.parquet')

def test_datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip('datasets')
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    rows = datasets.Dataset.from_dict({'text': LINES[:6]})
    rows.save_to_disk(str(tmp_path / 'saved'))
    assert list(read_corpus(tmp_path / 'saved')) == LINES[:6]
    # the Hub's data set: one `train` split of Parquet files with a column `text`
    folder = tmp_path / 'openwebtext'
    folder.mkdir()
    table(folder / 'train-00000-of-00001.parquet', LINES[:4])
    assert list(read_corpus(f'datasets:{folder}')) == LINES[:4]
    real = datasets.load_dataset
    def hub(name, **kw):
        if name != 'Skylion007/openwebtext': raise FileNotFoundError(name)
        return real(str(folder), **kw)
    monkeypatch.setattr(datasets, 'load_dataset', hub)
    monkeypatch.chdir(tmp_path)
    assert list(read_corpus('Skylion007/openwebtext')) == LINES[:4]
    with pytest.raises(FileNotFoundError, match='as a data set'):
        read_corpus('Skylion007/openwebtex')

# packing and order

@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.integers(1, 20), st.integers(0, 19))
def test_packed(n, length, offset):
    if offset >= n: return
    seqs = packed(np.arange(n), length, offset)
    assert seqs.shape == ((n - offset) // length, length)
    assert seqs.ravel().tolist() == list(range(offset, offset + seqs.size))

@settings(max_examples=30, deadline=None)
@given(st.integers(40, 300), st.integers(2, 9), st.integers(1, 4), st.integers(0, 5))
def test_epochs_cover_each_sequence_at_most_once(n, length, batch, seed):
    data = Epochs(np.arange(n), length, batch, seed)
    for epoch in range(3):
        x = torch.cat([data.batch(epoch * data.per_epoch + i) for i in range(data.per_epoch)])
        offset = epoch * 37 % length
        assert x.shape == (data.per_epoch * batch, length) and (x.diff(dim=1) == 1).all()
        assert ((x[:, 0] - offset) % length == 0).all() and len(x[:, 0].unique()) == len(x)
        # less than two batches are left out
        assert (n - offset) // length - len(x) <= batch
    assert torch.equal(Epochs(np.arange(n), length, batch, seed).batch(5), data.batch(5))

# grids

def test_batches_of_grids_are_new_solved_and_a_function_of_their_step():
    s, base = Sudoku(), random_grids(Sudoku(), 50, np.random.default_rng(0))
    def data(seed): return Grids(s, base.astype(np.uint16).ravel(), 64, seed)
    batches = [data(3).batch(i).numpy() for i in range(4)]
    for b in batches: assert is_solved(s, b).all() and not held_out(b).any() and b.shape == (64, 81)
    assert (data(3).batch(2).numpy()
            == batches[2]).all() and (data(4).batch(2).numpy() != batches[2]).any()
    assert len(np.unique(np.concatenate([base, *batches]), axis=0)) == 50 + 4 * 64

def test_a_corpus_of_grids_is_solved_and_always_the_same():
    s, tok = Sudoku(2, 2), tokenizer_of(Sudoku(2, 2))
    train, held = read_corpus('sudoku:2x2'), validation_corpus('sudoku:2x2', None, 'text')
    for corpus, n in ((train, 20_000), (held, 2_000)):
        texts = list(corpus)
        grids = np.array([tok.encode(t).ids for t in texts[:200]])
        assert len(texts) == n and is_solved(s, grids).all() and texts[:9] == list(corpus)[:9]
        assert held_out(grids).all() == (corpus is held)
