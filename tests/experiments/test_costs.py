"""How long a sweep will take, and how much disk, before it is run."""
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import navira.experiments.costs as ex_costs
import navira.experiments.old_run as ex_run
import navira.sampling as ex_sampling
from navira.experiments.cells import Cell, cell_key, rule
from navira.experiments.old_sweep import cells, Entry, read_sweep
from navira.experiments.old_store import checked, claim, IDENTITY, open_store
from navira.experiments.measure import evaluate_store
from navira.experiments.costs import estimate, judging, kind
from navira.cli.app import main
from toys import small_lm
from helpers.experiments import (  # noqa: F401
    CONFIG, GOLDEN, cache, home, judge, one_thread_each, said, same, toml)

@pytest.mark.parametrize('n', [2, 3])
def test_dealt_out(home, tmp_path, monkeypatch, n):
    """Processes one after the other: each does its share and no more, the last, which is the first, puts everything
    together"""
    done = []
    compute = ex_run.compute
    monkeypatch.setattr('navira.experiments.old_run.compute', lambda b, *a: done.append((b.key, b.first)) or compute(b, *a))
    todo = ex_run.to_do
    plans = {}
    for rank in (*range(1, n), 0):
        monkeypatch.setattr(
            'navira.experiments.old_run.processes',
            lambda device, rank=rank: SimpleNamespace(
                is_main_process=rank == 0,
                process_index=rank,
                num_processes=n,
                device=torch.device('cpu'),
                wait_for_everyone=lambda: None,
            ),
        )
        # all read the folder before anybody writes
        for room in ('navira.experiments.old_run', 'navira.experiments.costs'):
            monkeypatch.setattr(f'{room}.to_do', lambda *a: plans.setdefault('all', todo(*a)))
        if rank == 1:
            claim(
                tmp_path / 'store',
                replace(home.sweep, length=12),
                {k: home.store.record[k] for k in IDENTITY},
                home.model.tokenizer,
                {},
            )
        ex_run.run(home.sweep, tmp_path / 'store', home.model)
    assert len(done) == len(set(done)) == 24
    assert same(open_store(tmp_path / 'store'), home.store)

def test_a_batch_that_fails_is_named_and_not_stored(home, tmp_path, monkeypatch):
    "As where a quality head gives NaN, and sampling says so"
    sampled = ex_sampling.sample
    def failing(model, made, budget, *a, **kw):
        if budget == 8 and made == rule(Cell('prism', 8, dict(eta=0.2))):
            raise ValueError('the quality is NaN at position 3')
        return sampled(model, made, budget, *a, **kw)
    for room in ('navira.experiments.old_run', 'navira.experiments.samples', 'navira.experiments.costs'):
        monkeypatch.setattr(f'{room}.sample', failing)
    with pytest.raises(
        ValueError,
        match=r'prism at budget 8, seed 0 \([0-9a-f]{12}\): the quality is NaN at position 3\. Nothing of it is stored',
    ) as e:
        ex_run.run(home.sweep, tmp_path / 'store', home.model)
    key, left = str(e.value).partition('(')[2][:12], open_store(tmp_path / 'store')
    assert key in home.store.keys
    assert key not in left.keys
    assert not list(left.folder.glob(f'parts/{key}/*'))
    assert len(left.keys) == 4      # the smaller budget's
    monkeypatch.undo()
    assert same(ex_run.run(home.sweep, left.folder, home.model), home.store)

def test_a_trace_for_fewer_samples_loses_none(home, tmp_path):
    "Ten without a trace, then six with one: there are ten with one"
    entry = home.sweep.entries[0]
    ex_run.run(replace(home.sweep, entries=(replace(entry, trace=False),)), tmp_path / 's', home.model)
    fewer = replace(home.sweep, entries=(replace(entry, trace=True),), n=6)
    assert estimate(fewer, home.model, st=open_store(tmp_path / 's')).samples.sum() == 20
    store = ex_run.run(fewer, tmp_path / 's', home.model)
    assert all(len(checked(store.cell(k), True)[0]) == 10 for k in store.keys)

@pytest.mark.parametrize('name', ['small', 'curves', 'ablations', 'one-gpu', 'paper'])
def test_configurations_that_ship(name):
    s = read_sweep(name)
    cost = estimate(s)
    assert s.length
    assert (cost.forwards > 0).all()
    assert (cost.bytes > 0).all()
    assert len({cell_key(c) for c in cells(s)}) == cost.cells.sum()
    if name == 'small':
        at = {}
        for c in cells(s): at.setdefault(c.label, {})[c.budget] = c.n
        full = [
            l
            for l, ns in at.items()
            if set(ns) == {16, 32, 64, 128, 256} and all(n >= 100 for F, n in ns.items() if F < 256)
        ]
        assert s.budgets == (16, 32, 64, 128, 256) and s.n == 100 and len(full) >= 15
        assert set(GOLDEN) <= {e.policy for e in s.entries}
        assert cost.bytes.sum() < 20e6

def test_dry_run_counts_judging_and_what_is_missing(home, tmp_path, judge, monkeypatch, capsys):
    "Judging has its time; of a store that is there, only the rest counts"
    from navira.base.progress import clock

    assert [clock(s) for s in (.5, 360, 3600, 3900, float('nan'))] == [
        '0 min 00 s', '6 min 00 s', '1 h 00 min', '1 h 05 min', '?']
    for room in ('navira.evaluation.references', 'navira.experiments.measure'):
        monkeypatch.setattr(f'{room}.load_reference', lambda *a, **kw: judge)
    s = replace(home.sweep, metrics=('entropy', 'perplexity'), features=8, scored=4)
    assert estimate(s).scored.tolist() == [4 * 2 + 10, 2 * (4 * 2 + 10), 4 * 2 + 10]
    assert 0 < judging(s, home.model) < 5     # features of all, at 8 forwards
    st = ex_run.run(replace(s, n=6, entries=s.entries[:1]), tmp_path / 's', home.model)
    left = estimate(s, home.model, st=st)
    assert left.samples.tolist() == [12, 40, 20]
    assert left.cells.tolist() == [2, 4, 2]        # of 6 in batches of 4, 4 stay
    evaluate_store(st, ['perplexity'], 'smollm2')
    assert estimate(s, home.model, st=st).scored.tolist() == [10, 36, 18]
    (tmp_path / 'a.toml').write_text(toml(CONFIG | dict(model=str(home.folder / 'model'), metrics=['perplexity'])))
    assert (
        pytest.raises(
            SystemExit, main, ['sweep', str(tmp_path / 'a.toml'), '--store', str(tmp_path / 's'), '--dry-run']
        ).value.code
        == 0
    )
    said = ' '.join(capsys.readouterr().out.split())
    assert '72 texts' in said and 'beside what is there' in said and 'texts to judge, ' in said and ' here.' in said, (
        said
    )

def test_what_was_timed_is_kept(home, cache, monkeypatch):
    "One policy of a kind, once; again where the file is damaged, for another model, or when asked to"
    timed, pace = [], ex_costs.pace
    monkeypatch.setattr('navira.experiments.costs.pace', lambda model, c, s: timed.append(c.policy) or pace(model, c, s))  # noqa: E501
    seen = list[tuple]()
    first = estimate(home.sweep, home.model, lambda *a: seen.append(a))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    kinds = {kind(c) for c in cells(home.sweep)}
    assert len(timed) == len(kinds) == len(list(cache.iterdir())) == 3
    again = estimate(home.sweep, home.model)
    assert len(timed) == 3 and again.hours.tolist() == first.hours.tolist()
    files = sorted(cache.iterdir())
    for i, bad in enumerate(
        (
            b'',
            b'[]',
            b'{"seconds": [1.0, 2.0]}',
            b'\xff',
            b'[' * 100000,
            files[1].read_bytes(),
            json.dumps(json.loads(files[0].read_text()) | dict(seconds=[float('nan'), 1.0])).encode(),
            json.dumps(json.loads(files[0].read_text()) | dict(seconds='fast')).encode(),
        )
    ):
        files[0].write_bytes(bad)
        assert (estimate(home.sweep, home.model).hours > 0).all() and len(timed) == 4 + i
    estimate(home.sweep, small_lm(seed=4)); assert len(timed) == 4 + i + 3
    estimate(replace(home.sweep, batch_size=3), home.model); assert len(timed) == 4 + i + 6
    estimate(home.sweep, home.model, fresh=True); assert len(timed) == 4 + i + 9
    assert not [p for p in cache.iterdir() if p.name.startswith('.')]

def test_a_cache_that_cannot_be_written_is_none(home, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    monkeypatch.setattr('navira.experiments.costs.cache_folder', lambda: tmp_path / 'file' / 'navira')
    assert (estimate(home.sweep, home.model).hours > 0).all()

def test_a_policy_without_a_budget_is_timed_by_one_that_keeps_to_it(home, monkeypatch):
    "Else a dry run of `small` samples whole texts of `first-hitting`, `eb` and others, three times each"
    timed, pace = [], ex_costs.pace
    monkeypatch.setattr('navira.experiments.costs.pace', lambda model, c, s: timed.append(c.policy) or pace(model, c, s))  # noqa: E501
    s = replace(
        home.sweep,
        entries=tuple(map(Entry, ('first-hitting', 'eb', 'backbone', 'dream-entropy', 'mdlm'))),
        budgets=(4,),
    )
    assert (estimate(s, home.model).hours > 0).all() and timed == ['mdlm', 'dream-entropy']
    timed.clear()
    assert (
        estimate(replace(s, entries=(Entry('prism'), Entry('eb'))), home.model, fresh=True).hours > 0
    ).all()
    assert set(timed) == {'prism', 'eb'}
    assert len({kind(c) for c in cells(read_sweep('small'))}) <= 20       # about a second each on two cores
