"""A folder of samples that can be interrupted, resumed and shared."""
import json, os, random, resource, shutil, sys
from dataclasses import replace

import pytest
import torch
import pyarrow as pa
from hypothesis import given, strategies as st

import navira.experiments.cells as ex_cells
from navira.experiments.cells import Cell, cell_key, plain
from navira.experiments.old_store import by_step, Damaged, open_store, read_table, write_table
from helpers.experiments import cache, cli, home, one_thread_each, same  # noqa: F401

# --- several processes ------------------------------------------------------------------------------------------------

def test_two_processes_make_the_same_store(home, tmp_path):
    launch = (
        sys.executable,
        '-m',
        'accelerate.commands.launch',
        '--multi_gpu',
        '--num_processes',
        '2',
        '--num_machines',
        '1',
        '--mixed_precision',
        'no',
        '--dynamo_backend',
        'no',
        '--main_process_port',
        str(random.randint(20000, 60000)),
        '-m',
        'navira.cli',
    )
    p = cli('sweep', home.config, '--store', tmp_path / 'two', prefix=launch)
    text, _ = p.communicate(timeout=900)
    assert p.returncode == 0, text[-3000:]
    store = open_store(tmp_path / 'two')
    assert store.record['places'][0]['processes'] == 2 and store.record['places'][0]['threads'] == 1
    assert same(store, home.store)

@pytest.mark.parametrize('counts', [pa.array([3, -5]), pa.array(['x', 'y']), pa.array([None, None], pa.int32())])
def test_passes_that_cannot_be_are_damage(tmp_path, counts):
    write_table(tmp_path / 't.parquet', pa.table(dict(n_forward=counts)), dict(key='t'))
    with pytest.raises(Damaged, match='t.parquet: n_forward: expected whole numbers of at least 0'):
        read_table(tmp_path / 't.parquet')

def test_metrics_that_are_a_file_are_named(home, tmp_path):
    (tmp_path / 'metrics').touch()
    shutil.copy(home.store.folder / 'sweep.json', tmp_path)
    with pytest.raises(ValueError, match='metrics: a file; expected a folder'): open_store(tmp_path)

def test_disk_really_full(tmp_path):
    "The system itself refuses the bytes (a limit on the size of files): what was there before stays"
    path, table = tmp_path / 'a' / 't.parquet', pa.table(dict(x=list(range(5000))))
    write_table(path, table.slice(0, 3), dict(v=1))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
    try:
        with pytest.raises(OSError, match='no space left'): write_table(path, table, dict(v=2))
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert read_table(path)[1] == dict(v=1) and os.listdir(path.parent) == ['t.parquet']

@pytest.mark.parametrize(
    'change',
    [
        dict(config=5),
        dict(config={}),
        dict(sweeps=[]),
        dict(sweeps={'a': 3}),
        dict(asked={'none': {}}),
        dict(asked={'grid': []}),
        dict(places={}),
        dict(length='12'),
        dict(own=[]),
    ],
    ids=str,
)
def test_a_record_with_something_else_in_it(home, tmp_path, change):
    (tmp_path / 'sweep.json').write_text(json.dumps(home.store.record | change))
    with pytest.raises(ValueError, match='sweep.json: .*delete it and give the `navira sweep` command again'):
        open_store(tmp_path)

@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.randoms(use_true_random=False))
def test_positions_there_and_back(T, n, L, rnd):
    where = torch.tensor([[[rnd.random() < .3 for _ in range(L)] for _ in range(n)] for _ in range(T)])
    lists = by_step(where).to_pylist()
    assert lists == [[where[t, b].nonzero().flatten().tolist() for t in range(T)] for b in range(n)]

def test_rules_and_large_seeds_are_in_the_key(monkeypatch):
    cell = Cell('prism', 8)
    keys = {cell_key(replace(cell, seed=s)) for s in (0, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, 2**63 - 2)}
    newer = ex_cells.RULES + 1
    for room in ('navira.experiments.cells', 'navira.experiments.old_store'): monkeypatch.setattr(f'{room}.RULES', newer)
    assert len(keys | {cell_key(cell)}) == 7
    assert plain([1, 1., True, 2**53 + 1, float('inf')]) == [1., 1., True, 2**53 + 1, float('inf')]
    assert isinstance(plain(3), float)
