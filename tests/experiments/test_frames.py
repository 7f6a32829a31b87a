"""One row a sample or one row a set, and a small copy that can be committed."""
import errno, json, os, shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import navira.experiments.old_run as ex_run
import navira.experiments.samples as ex_samples
import navira.evaluation.diversity as metrics_diversity
from navira.base.stats import bootstrap
from navira.evaluation.perplexity import perplexity, Reader, Reference
from navira.evaluation.mauve import features, grouped_mauve
from navira.experiments.old_store import checked, checksums, claim, Damaged, IDENTITY, open_store, write_table
from navira.experiments.samples import trajectory
from navira.experiments.measure import evaluate_store, Judge, METRIC_RULES, real_features, wanted
from navira.experiments.costs import estimate
from navira.experiments.frames import compact, features_of, load_samples, samples, set_rows
from navira.cli.app import main
from helpers.experiments import (  # noqa: F401
    cache, counted, entries, foreign, home, judge, measured, one_thread_each, said, same, sixty)

# --- damage -----------------------------------------------------------------------------------------------------------

def flip(path):
    "A bit in the last data page of the tokens"
    tokens = pq.read_metadata(path).row_group(0).column(1)
    b = bytearray(path.read_bytes())
    b[
        tokens.data_page_offset
        + tokens.total_compressed_size
        - (tokens.data_page_offset - (tokens.dictionary_page_offset or tokens.data_page_offset))
        - 3
    ] ^= 64
    path.write_bytes(bytes(b))

def from_elsewhere(path):
    table, about = checked(path)
    write_table(path, table, about | dict(dtype='bfloat16'))

def shuffled(path):
    table, about = checked(path)
    write_table(path, table.take(list(range(len(table)))[::-1]), about)

def other_tokens(path):
    table, about = checked(path)
    rows = table['tokens'].to_pylist(); rows[3][0] = (rows[3][0] + 1) % 10
    write_table(path, table.set_column(1, 'tokens', pa.array(rows, table.schema.field('tokens').type)), about)

def tokens_as(make):
    def damage(path):
        table, about = checked(path)
        rows = make(table['tokens'].to_pylist())
        crc = table['crc'] if any(not 0 <= t < 2**31 for r in rows for t in r) else pa.array(checksums(rows))
        write_table(
            path,
            table.set_column(1, 'tokens', pa.array(rows, pa.list_(pa.int64()))).set_column(2, 'crc', crc),
            about,
        )
    return damage

def twice(path):
    table, about = checked(path)
    write_table(path, pa.concat_tables([table, table]), about)

DAMAGE = dict(
    cut=lambda p: p.write_bytes(p.read_bytes()[:-100]),
    empty=lambda p: p.write_bytes(b''),
    bit=flip,
    foreign=foreign,
    text=lambda p: p.write_text('{}'),
    elsewhere=from_elsewhere,
    order=shuffled,
    tokens=other_tokens,
)
DAMAGE |= dict(
    another=lambda p: p.write_bytes(next(q for q in sorted(p.parent.glob('*.parquet')) if q != p).read_bytes()),
    a_list=said(lambda about: [1]),
    no_key=said(lambda about: {k: v for k, v in about.items() if k != 'key'}),
    no_label=said(lambda about: {k: v for k, v in about.items() if k != 'label'}),
    wrong_kind=said(lambda about: about | dict(n_steps='four')),
    twice=twice,
    huge=tokens_as(lambda rows: [[2**40] * 12] + rows[1:]),
    negative=tokens_as(lambda rows: [[-1] * 12] + rows[1:]),
    short=tokens_as(lambda rows: [rows[0][:-1]] + rows[1:]),
)

ONLY_TOKENS = ('order', 'tokens', 'bit', 'huge', 'negative', 'short')      # seen only where tokens are read

@pytest.mark.parametrize('how', DAMAGE)
def test_damaged_cell(home, tmp_path, how):
    "Named, set aside, computed again; while it is damaged, tables do without it and say so"
    store = ex_run.run(home.sweep, tmp_path / 'store', home.model)
    path = store.cell(store.keys[2])
    DAMAGE[how](path)
    if how not in ONLY_TOKENS:
        with pytest.warns(UserWarning, match=f'{path.name}.*left out'):
            assert set(load_samples(store).key) == set(store.keys) - {path.stem}
    with pytest.warns(UserWarning, match=f'{path.name}.*set aside'):
        store = ex_run.run(home.sweep, store.folder, home.model)
    assert same(store, home.store) and path.with_name(path.name + '.damaged').exists()

def test_lost_or_broken_record(home, tmp_path):
    store = ex_run.run(home.sweep, tmp_path / 'store', home.model)
    (store.folder / 'sweep.json').write_text('{"name":')
    with pytest.raises(ValueError, match='no JSON'): ex_run.run(home.sweep, store.folder, home.model)
    (store.folder / 'sweep.json').unlink()
    with pytest.raises(FileNotFoundError, match='no sweep.json'): load_samples(store.folder)
    assert same(ex_run.run(home.sweep, store.folder, home.model), home.store)

def test_a_cell_under_another_name_is_not_counted(home, tmp_path):
    "A copy beside the original, and a part of another cell: no text twice, wherever it is read"
    store = ex_run.run(home.sweep, tmp_path / 'store', home.model)
    before, key = len(samples(store)), store.keys[0]
    copy = store.cell('0123456789ab')
    copy.write_bytes(store.cell(key).read_bytes())
    with pytest.warns(UserWarning, match=f'{copy.name}: the file of .{key}. under another name'):
        assert len(samples(store)) == before
    for f in (ex_samples.tokens, ex_samples.texts, trajectory):
        with pytest.raises(Damaged, match='under another name'): f(store, copy.stem)
    with pytest.warns(UserWarning, match='under another name.*not measured'): evaluate_store(store)
    assert not store.metric(copy.stem, 'entropy').exists()
    copy.unlink()
    entropy = store.metric(key, 'entropy')
    store.metric(store.keys[1], 'entropy').write_bytes(entropy.read_bytes())
    store.metric(store.keys[2], 'entropy').write_bytes(b'')
    store.metric(key, 'repetition').write_bytes(entropy.read_bytes())
    with pytest.warns(UserWarning, match='under another name.*set aside'): df = load_samples(store)
    assert df.entropy.isna().sum() == 2 and 'repetition' not in df

@pytest.mark.parametrize(
    'text, expected',
    [
        (b'', 'no JSON'),
        (b'{"name": "a", "config', 'no JSON'),
        (b'[1]', 'a list, expected a table'),
        (b'"x"', 'a str'),
        (b'{}', 'name=None'),
        (b'{"caf\xe9": 1}', 'no JSON'),
        (b'[' * 100000, 'no JSON'),
    ],
)
def test_a_record_that_is_none(home, tmp_path, text, expected):
    "Every command says what is wrong with it, and what to do"
    path = tmp_path / 'store' / 'sweep.json'
    path.parent.mkdir(); path.write_bytes(text)
    for f in (
        lambda: open_store(path.parent),
        lambda: load_samples(path.parent),
        lambda: evaluate_store(path.parent),
        lambda: ex_run.run(home.sweep, path.parent, home.model),
    ):
        with pytest.raises(
            ValueError, match=f'sweep.json: {expected}.*delete it and give the `navira sweep` command again'
        ):
            f()
    assert path.read_bytes() == text

def test_any_record(home, tmp_path):
    "A field less, or of another kind: a sentence, or a store that reads"
    store = ex_run.run(replace(home.sweep, entries=home.sweep.entries[:1], budgets=(4,)), tmp_path / 'store', home.model)  # noqa: E501
    for where in ((), ('config',)):
        for k in [*(store.record['config'] if where else store.record)]:
            for new in (None, 5, 'x', [], {}):
                record = json.loads(json.dumps(store.record)); (record['config'] if where else record)[k] = new
                (store.folder / 'sweep.json').write_text(json.dumps(record))
                try: load_samples(store.folder); evaluate_store(store.folder, ['entropy'])
                except (ValueError, KeyError, FileNotFoundError) as e: assert len(str(e)) > 30, (where, k, new, e)

def test_more_entries_budgets_and_a_new_name(home, tmp_path, monkeypatch):
    store = ex_run.run(replace(home.sweep, budgets=(4,), entries=home.sweep.entries[:2]), tmp_path / 'store', home.model)  # noqa: E501
    done, compute = [], ex_run.compute
    monkeypatch.setattr('navira.experiments.old_run.compute', lambda b, *a: done.append(b.key) or compute(b, *a))
    ex_run.run(home.sweep, store.folder, home.model)
    assert len(set(done)) == 5 and same(store, home.store)
    ex_run.run(
        replace(home.sweep, entries=(replace(home.sweep.entries[0], label='PRISM'), *home.sweep.entries[1:])),
        store.folder,
        home.model,
    )
    assert len(set(done)) == 5 and set(load_samples(store).label) == {'PRISM', 'navira', 'backbone'}

def test_estimate_is_an_upper_bound_of_bytes_and_right_about_forwards(home):
    cost = estimate(home.sweep, home.model)
    assert sum(p.stat().st_size for p in home.store.folder.glob('cells/*')) <= cost.bytes.sum()
    df = load_samples(home.store)
    assert (df.n_forward <= df.charged).all()
    assert (df.charged * df.n).sum() == cost.forwards.sum()
    assert (cost.hours > 0).all()

# --- several sweeps in one store --------------------------------------------------------------------------------------

def test_a_second_sweep_forgets_nothing(home, tmp_path, monkeypatch):
    "small, then curves, then one evaluate: metrics, features and scored samples of both"
    first = replace(
        home.sweep,
        name='first',
        entries=home.sweep.entries[:1],
        metrics=('entropy', 'perplexity'),
        features=8,
        scored=6,
    )
    second = replace(
        home.sweep, name='second', entries=home.sweep.entries[2:], metrics=('repetition', 'perplexity'), scored=4
    )
    ex_run.run(first, tmp_path / 's', home.model)
    config = ex_run.run(second, tmp_path / 's', home.model).record['config']
    assert (config['name'], wanted(config), config['features'], config['scored']) == (
        'first',
        ['entropy', 'perplexity', 'repetition', 'features', 'mauve'],
        8,
        6,
    )
    assert [e['policy'] for e in config['entries']] == ['prism', 'backbone']
    with pytest.warns(UserWarning, match="reference='other', the store has 'smollm2'"):
        ex_run.run(replace(second, reference='other'), tmp_path / 's', home.model)
    # a sweep may change its own mind
    asked = ex_run.run(replace(first, scored=2), tmp_path / 's', home.model).record
    assert asked['config']['scored'] == 4 and list(asked['sweeps']) == ['first', 'second']
    evaluate_store(tmp_path / 's', ['entropy', 'repetition'])
    assert load_samples(tmp_path / 's')[['entropy', 'repetition']].notna().all(axis=None)

def test_a_metric_of_other_tokens_does_not_count(measured, monkeypatch):
    "A cell that holds other texts than the metric has judged: those rows are NaN until they are measured"
    evaluate_store(measured)
    key = measured.keys[0]
    table, about = checked(measured.cell(key))
    rows = table['tokens'].to_pylist(); rows[3] = [9] * 12
    table = table.set_column(1, 'tokens', pa.array(rows, table.schema.field('tokens').type)).set_column(
        2, 'crc', pa.array(checksums(rows))
    )
    write_table(measured.cell(key), table, about)
    assert samples(measured, [key]).entropy.isna().tolist() == [i == 3 for i in range(10)]
    rows = counted(monkeypatch)
    evaluate_store(measured)
    assert rows == [1] and samples(measured, [key]).entropy[3] == 0

def test_perplexity_in_the_store(measured, judge, monkeypatch):
    "Scored samples can be more later; two references stand side by side; the interval is there"
    rows = counted(monkeypatch, 'perplexity')
    evaluate_store(measured, ['perplexity'], judge, scored=4); evaluate_store(measured, ['perplexity'], judge, scored=7)
    assert rows == [8, 6]                                  # both cells at once
    df = load_samples(measured)
    assert df.scored.tolist() == [7, 7] and df.perplexity_lo.isna().all()        # none below eight texts
    texts = ex_samples.texts(measured, df.key[0])[:7]
    assert df.perplexity[0] == pytest.approx(perplexity(texts, judge).value, rel=1e-5)
    other = Reference(judge.model, judge.tokenizer, judge.eos, 'another')
    evaluate_store(measured, ['perplexity'], other, scored=3)
    assert load_samples(measured, reference='another').scored.tolist() == [3, 3]
    assert load_samples(measured, reference='random').scored.tolist() == [7, 7]
    with pytest.raises(KeyError, match="did you mean 'another'"): load_samples(measured, reference='anothr')

def test_sets(measured):
    evaluate_store(measured, ['sets', 'repetition'])
    df = load_samples(measured)
    for name in metrics_diversity.of_sets: assert (df[f'{name}_lo'] <= df[name]).all() and (df[name] <= df[f'{name}_hi']).all()  # noqa: E501
    assert df.repetition.between(0, 1).all()
    before = measured.metric(df.key[0], 'sets').stat().st_mtime_ns
    evaluate_store(measured, ['sets'])
    assert measured.metric(df.key[0], 'sets').stat().st_mtime_ns == before

def test_features_at_one_budget(measured, judge):
    config = measured.record['config'] | dict(features=8)
    record = {k: v for k, v in measured.record.items() if k != 'asked'} | dict(config=config)
    (measured.folder / 'sweep.json').write_text(json.dumps(record))
    store = open_store(measured.folder)
    evaluate_store(store, ['features'], judge)
    files = list(store.folder.glob('metrics/*features*'))
    assert len(files) == 1
    key = files[0].name.split('-')[0]
    want = features(judge, ex_samples.texts(store, key))
    assert torch.allclose(features_of(store, key, judge.name), want, atol=2e-3 * want.abs().max().item())
    with pytest.raises(FileNotFoundError, match='no features'):
        features_of(store, next(k for k in store.keys if k != key), judge.name)

def test_mauve(sixty, judge):
    "Asked for by its budget; of all samples, against as many windows of the corpus; computed once"
    pytest.importorskip('mauve')
    evaluate_store(sixty, reference=judge)
    key, = sixty.keys
    row = set_rows(sixty, key, 'random')[-1]
    assert (row['metric'], row['groups'], row['n']) == ('mauve', 2, 60)
    ours, real = features_of(sixty, key, 'random'), real_features(sixty, Judge(judge))
    assert real.shape == ours.shape == (60, 16)
    assert row['value'] == pytest.approx(grouped_mauve(real, ours).value)
    before = {p: p.stat().st_mtime_ns for p in sixty.folder.glob('metrics/*')}
    evaluate_store(sixty, reference=judge)
    assert {p: p.stat().st_mtime_ns for p in sixty.folder.glob('metrics/*')} == before

def test_a_large_copy_says_what_is_large(measured, tmp_path):
    with pytest.warns(UserWarning, match='of which cells'): compact(measured, tmp_path / 'small', large=100)
    path = measured.cell(measured.keys[1]); path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(Damaged): compact(measured, tmp_path / 'other')
    assert not (tmp_path / 'other').exists()

def test_a_metric_of_an_older_version_is_measured_again(measured, monkeypatch):
    evaluate_store(measured, ['entropy', 'sets'])
    before = {p: p.stat().st_mtime_ns for p in measured.folder.glob('metrics/*')}
    monkeypatch.setitem(METRIC_RULES, 'sets', METRIC_RULES['sets'] + 1)
    assert all(not set_rows(measured, k) for k in measured.keys)
    evaluate_store(measured, ['entropy', 'sets'])
    assert {
        p.name.split('-')[1].split('.')[0]
        for p in measured.folder.glob('metrics/*')
        if p.stat().st_mtime_ns != before[p]
    } == {'sets'}
    assert all(set_rows(measured, k) for k in measured.keys)

def test_a_server_has_no_features(measured, judge, monkeypatch):
    "Asked for by a budget, features and MAUVE that a server cannot give are said once, and everything else is measured"
    class Server(Reader):
        name, eos, tokenizer, limit, nll = 'random', judge.eos, judge.tokenizer, None, judge.nll
    config = measured.record['config'] | dict(features=8, metrics=['entropy', 'perplexity'])
    (measured.folder / 'sweep.json').write_text(
        json.dumps({k: v for k, v in measured.record.items() if k != 'asked'} | dict(config=config))
    )
    with pytest.warns(UserWarning, match='features, not measured everywhere: .*no hidden states') as said:
        evaluate_store(measured.folder, reference=Server())
    assert len([w for w in said if 'not measured everywhere' in str(w.message)]) == 1
    assert load_samples(measured).perplexity.notna().all()

def test_a_damaged_perplexity_file_stops_nothing(measured, judge):
    evaluate_store(measured, ['perplexity'], judge)
    path = measured.metric(measured.keys[0], 'perplexity', judge.name)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match='set aside'): df = load_samples(measured, reference='random')
    assert df.perplexity.notna().sum() == len(df) - 1

def test_load(home, measured):
    "Means and intervals as computed by hand"
    evaluate_store(measured)
    df, per = load_samples(measured), samples(measured)
    assert len(per) == 20 and set(df.budget) == {4, 8} and df.settled[0]['eta'] == .2
    for c in df.itertuples():
        h = metrics_diversity.entropy(ex_samples.tokens(measured, c.key))
        assert c.entropy == pytest.approx(h.mean().item())
        assert (c.entropy_lo, c.entropy_hi) == pytest.approx(bootstrap(h))
        assert c.n_remasked == trajectory(measured, c.key)[0].sum().item() / 10 and c.tokens_a_step == 12 / c.n_steps
    assert load_samples(measured, limit=5).n.tolist() == [5, 5]
    assert ex_samples.texts(measured, df.key[0])[0].split()
    with pytest.raises(ValueError, match='no finished cell'):
        load_samples(
            claim(
                home.folder / 'empty', replace(home.sweep, length=12), {k: home.store.record[k] for k in IDENTITY}
            )
        )

def test_compact(home, measured, tmp_path):
    "Small, complete in its metrics, honest about what it lacks"
    evaluate_store(measured)
    store = ex_run.run(replace(home.sweep, entries=home.sweep.entries[:1], keep=5), measured.folder, home.model)
    copy = compact(store, tmp_path / 'copy')
    pd.testing.assert_frame_equal(load_samples(copy), load_samples(store))
    assert all(torch.equal(ex_samples.tokens(copy, k), ex_samples.tokens(store, k)[:5]) for k in store.keys)
    assert all(torch.equal(a, b) for k in store.keys for a, b in zip(trajectory(copy, k), trajectory(store, k)))
    evaluate_store(copy)                                      # nothing is missing
    with pytest.raises(ValueError, match='is not empty'): compact(store, tmp_path / 'copy')
    # a full disk, at several files: nothing is left, and the same command goes on
    for there in (False, True):
        for call in (0, 2, 4):
            if there: (tmp_path / 'again').mkdir(exist_ok=True)
            calls, copy_, write = iter(range(10**6)), shutil.copyfile, pq.write_table
            def full(f):
                def g(*a, **kw):
                    f(*a, **kw)
                    if next(calls) >= call: raise OSError(errno.ENOSPC, 'No space left on device')
                return g
            with pytest.MonkeyPatch.context() as m:
                m.setattr(shutil, 'copyfile', full(copy_)); m.setattr(pq, 'write_table', full(write))
                with pytest.raises(OSError, match='[Nn]o space left'): compact(store, tmp_path / 'again')
            assert (tmp_path / 'again').exists() == there and not (there and os.listdir(tmp_path / 'again'))
    pd.testing.assert_frame_equal(load_samples(compact(store, tmp_path / 'again')), load_samples(store))
    slim = compact(store, tmp_path / 'slim', traces=False)
    with pytest.raises(ValueError, match='without a trace'): trajectory(slim, slim.keys[0])

def test_the_whole_thing(home, tmp_path, monkeypatch, capsys):
    "The three commands, as far as they go without a reference, in a folder of their own"
    monkeypatch.chdir(tmp_path); monkeypatch.setattr('navira.experiments.frames.RUNS', Path('runs'))
    run_ = lambda *a: pytest.raises(SystemExit, main, list(map(str, a))).value.code
    assert run_('evaluate') == 2 and 'no store in runs' in capsys.readouterr().err
    assert run_('sweep', home.config, '--set', 'n=6') == 0 and run_('evaluate', '--compact', 'copy') == 0
    assert Path('runs/grid/sweep.json').exists() and load_samples('copy').n.tolist() == [6] * 8, capsys.readouterr()
