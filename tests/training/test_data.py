"""From texts and grids to batches: a corpus on disk, an order that can be resumed."""
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.tasks.sudoku import held_out, is_solved, random_grids, Sudoku, symbol_tokenizer
from navira.tasks.corpora import read_corpus
from navira.training.data import epochs, grid_epochs
from helpers.training import LINES, one_thread, table  # noqa: F401

# a corpus

FILES = {     # name: content, its documents or what is wrong
    'bom.txt': ('\ufeffone\r\ntwo\r\n', ['one\ntwo\n']),
    'plain': ('no suffix', ['no suffix']),
    'a.jsonl': ('{"text": "a\\r\\nb", "n": 1}\n\n{"text": "c"}\n', ['a\nb', 'c']),
    'b.JSONL': ('\ufeff{"text": "c"}\r\n', ['c']),
    'key.jsonl': ('{"text": "a"}\n{"txt": "b"}\n', 'line 2: .*"txt".*expected an object'),
    'null.jsonl': ('\n{"text": null}\n', 'line 2: .*null'),
    'cut.jsonl': ('{"text": "a"', 'line 1: Expecting'),
    'a.json': ('[{"text": "a"}]', 'expected text in .txt'),
    'a.jsonl.gz': ('x', 'expected text in .txt'),
    '16le.txt': ('text'.encode('utf-16-le'), 'zero bytes'),
    'cut.parquet': (b'PAR1 and no more', ''),
    'int.parquet': ([1, 2], "column 'text' holds int; expected text"),
    'rows.parquet': (['a\r\nb', None, ' '], ['a\nb'])}

@pytest.mark.parametrize('name', FILES)
def test_a_file_gives_its_documents_or_is_named(name, tmp_path):
    content, expected = FILES[name]
    path = tmp_path / name
    if isinstance(content, list): table(path, content)
    else: path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if isinstance(expected, list): assert list(read_corpus(path)) == expected
    else:
        with pytest.raises(ValueError, match=f'{name}.*: .*{expected}'): list(read_corpus(path))

def test_a_folder_has_splits_and_says_what_it_leaves_out(tmp_path, monkeypatch):
    (tmp_path / 'a.csv').write_text('x')
    with pytest.raises(ValueError, match='a.csv: expected text in'): list(read_corpus(tmp_path))
    table(tmp_path / 'train-0.parquet', LINES[:5])
    table(tmp_path / 'train-1.parquet', LINES[5:7])
    (tmp_path / 'validation.txt').write_text('held out')
    monkeypatch.setenv('HOME', str(tmp_path.parent))
    with pytest.warns(UserWarning, match='a.csv left out'):
        assert list(read_corpus(f'~/{tmp_path.name}')) == LINES[:7]
        assert list(read_corpus(tmp_path, split='validation')) == ['held out']

def test_a_data_set_of_the_hub(monkeypatch):
    datasets = pytest.importorskip('datasets')
    hub = {'Skylion007/openwebtext': dict(train=datasets.Dataset.from_dict(dict(text=LINES)))}
    monkeypatch.setattr(datasets, 'load_dataset', hub.__getitem__)
    assert list(read_corpus('Skylion007/openwebtext')) == LINES
    with pytest.raises(ValueError, match='as a data set'): next(read_corpus('Skylion007/web'))

# batches

@settings(max_examples=30, deadline=None)
@given(st.integers(40, 300), st.integers(2, 9), st.integers(1, 4), st.integers(0, 5))
def test_epochs_cover_each_sequence_at_most_once(n, length, size, seed):
    batch, per_epoch = epochs(np.arange(n), length, size, seed)
    for epoch in range(3):
        x = torch.cat([batch(epoch * per_epoch + i) for i in range(per_epoch)])
        offset = epoch * 37 % length
        assert x.shape == (per_epoch * size, length) and (x.diff(dim=1) == 1).all()
        assert ((x[:, 0] - offset) % length == 0).all() and len(x[:, 0].unique()) == len(x)
        assert (n - offset) // length - len(x) <= size     # less than two batches are left out

def test_batches_of_grids_are_new_solved_and_a_function_of_their_step():
    s, rng = Sudoku(), np.random.default_rng(0)
    base = random_grids(s, 50, rng).astype(np.uint32)
    def batches(seed, steps): return [grid_epochs(s, base.ravel(), 64, seed)[0](i) for i in steps]
    grids = np.concatenate([base, *batches(3, range(4))])
    assert is_solved(s, grids).all() and not held_out(grids[50:]).any()
    assert len(np.unique(grids, axis=0)) == 50 + 4 * 64
    assert (batches(3, [3, 2])[1].numpy() == grids[50:].reshape(4, 64, 81)[2]).all()

@pytest.mark.parametrize('split', ['train', 'validation'])
def test_a_corpus_of_grids_is_solved_and_always_the_same(split):
    texts, again = (list(itertools.islice(read_corpus('sudoku:2x2', split=split), 200))
                    for _ in range(2))
    grids = np.array([symbol_tokenizer(Sudoku(2, 2)).encode(t).ids for t in texts])
    assert texts == again and is_solved(Sudoku(2, 2), grids).all()
    assert held_out(grids).all() == (split == 'validation')
