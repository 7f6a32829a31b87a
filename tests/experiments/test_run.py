"""A store as its users treat it: killed, interrupted, on a full disk, in two processes, damaged,
extended, measured."""
import errno, json, math, os, runpy, shutil, signal, subprocess, sys, time
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from navira.base.runs import folder_lock, Interrupted
from navira.experiments.measure import evaluate
from navira.experiments.results import frame, note, points, tokens, trajectory
from navira.experiments.run import resample, run
from navira.experiments.store import compact, open_store, write_record, write_table
from navira.sampler import registry
from navira.sampler.draws import RULES
from helpers.experiments import home, judge, one_thread_each, same  # noqa: F401

# --- killed and interrupted
def started(*args): # a module and its arguments
    env = os.environ | dict(OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')
    return subprocess.Popen([sys.executable, '-m', *map(str, args)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=env)

def n_parts(folder):
    "`os.walk`, as folders of parts go while we look"
    return sum(n.endswith('.parquet') for _, _, names in os.walk(folder) for n in names
               if not n.startswith('.'))

def test_kill_9_and_resume(home, tmp_path):
    "Real processes, killed in the middle, then a run that is left alone"
    for at in (3, 14):
        p = started('navira.cli', 'sweep', home.config, '--store', tmp_path)
        while p.poll() is None and n_parts(tmp_path) < at: time.sleep(.002)
        p.kill(); p.communicate()
    assert same(run(home.sweep, tmp_path), home.store)

@pytest.mark.parametrize('call, full', [(0, True), (11, False), (24, True)])
def test_dies_at_any_write(home, tmp_path, monkeypatch, call, full):
    "Between the bytes and the new name, or on a full disk: of a part, of a table"
    class Dead(BaseException): pass
    calls, write = iter(range(10**6)), pq.write_table
    def dying(table, path, **kw):
        write(table, path, **kw)
        if next(calls) < call: return
        if not full: raise Dead
        os.truncate(path, os.path.getsize(path) // 2)
        raise OSError(errno.ENOSPC, 'No space left on device')
    with monkeypatch.context() as m, pytest.raises((Dead, OSError)):
        m.setattr(pq, 'write_table', dying)
        run(home.sweep, tmp_path/'store', home.model)
        raise Dead     # all was written before
    # what a kill leaves
    (tmp_path/'store'/'.navira-1073741824-0123456789abcdef.tmp').write_bytes(b'PAR1')
    assert same(run(home.sweep, tmp_path/'store', home.model), home.store)

def test_a_kill_between_table_and_parts_counts_nothing_twice(home, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr('shutil.rmtree', lambda *a, **kw: None)
        store = run(home.sweep, tmp_path/'store', home.model)
    assert n_parts(store.folder) > 1 and len(frame(store)) == len(frame(home.store))
    assert same(run(home.sweep, store.folder, home.model), home.store)

@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_piece(home, tmp_path, monkeypatch, sig):
    written = []
    def write(path, table):
        write_table(path, table)
        written.append(path)
        if len(written) == 2: signal.raise_signal(sig)
    monkeypatch.setattr('navira.experiments.run.write_table', write)
    with pytest.raises(Interrupted, match='stopped after 2 of 24.*same command again'):
        run(home.sweep, tmp_path/'store', home.model)
    assert n_parts(tmp_path/'store') == 2
    assert same(run(home.sweep, tmp_path/'store', home.model), home.store)

def test_two_processes_make_the_same_store(home, tmp_path):
    p = started('accelerate.commands.launch', '--cpu', '--num_processes', 2,
                '--main_process_port', 0,
                '-m', 'navira.cli', 'sweep', home.config, '--store', tmp_path/'store')
    text, _ = p.communicate(timeout=300)
    assert p.returncode == 0, text
    assert same(open_store(tmp_path/'store'), home.store)

# --- another sweep in the same folder
def test_only_one_at_a_time(home, tmp_path):
    with folder_lock(tmp_path), pytest.raises(ValueError, match='another sweep or evaluate is'):
        run(home.sweep, tmp_path, home.model)

def test_a_sweep_of_another_kind_is_refused(home):
    with pytest.raises(ValueError, match='another kind: prompt: .* in the store, .* now'):
        run(replace(home.sweep, prompt='we saw'), home.store.folder, home.model)

def test_more_samples_are_those_of_a_larger_sweep(home, tmp_path):
    run(home.sweep, tmp_path/'grown', home.model)
    larger = replace(home.sweep, n=13)
    assert same(run(larger, tmp_path/'grown', home.model),
                run(larger, tmp_path/'whole', home.model))

def test_a_second_sweep_forgets_nothing(home, tmp_path):
    st = run(home.sweep, tmp_path/'store', home.model)
    less = dict(policy='prism', eta=.2, n=3), dict(policy='mdlm', trace=True)
    more = run(replace(home.sweep, entries=less), tmp_path/'store', home.model)
    assert more.cells.keys() > st.cells.keys()
    assert all(more.cells[k][x] == c[x] for k, c in st.cells.items() for x in ('n', 'trace'))
    untraced = next(k for k, c in st.cells.items() if not c['trace'])
    with pytest.raises(ValueError, match='without a trace'): trajectory(st, untraced)

# --- what is in it
def test_a_store_holds_what_sample_gives(home):
    for key, c in home.store.cells.items():
        res, _ = resample(home.store, key, home.model, 4, 4)
        assert torch.equal(tokens(home.store, key)[4:8], res.tokens)
        if not c['trace']: continue
        remasked, written = trajectory(home.store, key)
        assert torch.equal(remasked[:, 4:8], res.trace.remasked)
        assert torch.equal(written[:, 4:8], res.trace.unmasked)

@pytest.fixture
def copied(home, tmp_path):
    shutil.copytree(home.store.folder, tmp_path/'copied')
    return tmp_path/'copied'

def cut(path): path.write_bytes(path.read_bytes()[:-40])

def changed(f): # f: table -> table
    def change(path): pq.write_table(f(pq.read_table(path)), path)
    return change

def filled(name, value): # a column of one value
    def change(table):
        if name in table.column_names: table = table.drop_columns([name])
        return table.append_column(name, [[value] * len(table)])
    return changed(change)

def pipe(path):
    path.unlink()
    os.mkfifo(path)

def record(**new): # a cell's value where the cell has one
    def change(path):
        old = json.loads(path.read_text())
        cells = {k: c | {x: v for x, v in new.items() if x in c} for k, c in old['cells'].items()}
        own = {x: v for x, v in new.items() if x in old}
        path.write_text(json.dumps(old | dict(cells=cells) | own))
    return change

VALUES = [('n_forward', -5.), ('n_forward', math.inf), ('n_forward', 'x'), ('n_forward', None),
          ('solved', .5), ('solved', 7), ('n_remasked', [1]), ('sample', None), ('cell', 5),
          ('tokens', 5), ('tokens', [1, 2]), ('tokens', [-1] * 12), ('seconds', dict(a=1)),
          ('remasked', [[99]]), ('entropy', -1.)]
RECORDS = dict(length='8', prompt=[1], cells=[], n='x', settled=[], matched=1, label=3, budget=-5)
DAMAGED = [
    *[('samples.parquet', filled(*column), f'damaged column {column[0]}') for column in VALUES],
    *[('store.json', record(**{k: v}), f'{k}=') for k, v in RECORDS.items()],
    ('store.json', cut, 'store.json: damaged'), ('tokenizer.json', cut, 'tokenizer.json'),
    ('store.json', lambda path: path.write_text('5'), 'store.json: damaged'),
    ('samples.parquet', cut, 'samples.parquet'), ('samples.parquet', pipe, 'pipe'),
    ('samples.parquet', changed(lambda t: t.drop_columns(['cell'])), 'samples.parquet'),
    ('samples.parquet', changed(lambda t: pa.concat_tables([t, t])), 'stands there twice')]

@pytest.mark.parametrize('name, change, expected', DAMAGED)
def test_damage_is_named(copied, name, change, expected):
    change(copied/name)
    with pytest.raises(ValueError, match=expected):
        frame(open_store(copied)), open_store(copied).tokenizer

def test_a_store_of_which_nothing_is_finished_says_so(home, copied):
    "Also one with a piece of a cell"
    path, st = copied/'samples.parquet', open_store(copied)
    whole = pq.read_table(path)
    pq.write_table(whole[:3], path)
    for f in evaluate, frame:
        with pytest.raises(ValueError, match='none of its 8 cells is finished'): f(st)
    cell = whole['cell'][0].as_py()
    pq.write_table(whole.filter(pc.field('cell') == cell), path)
    assert evaluate(st).finished == [cell] and len(points(frame(st))) == 1

def test_other_code_under_a_swept_name_is_refused(home, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, '_registry', registry.policies())     # forgets it afterwards
    def swept(code, policy):
        (tmp_path/'mine.py').write_text(code)
        runpy.run_path(str(tmp_path/'mine.py'))
        grid = replace(home.sweep, entries=(dict(policy=policy),), n=1, budgets=(4,))
        return run(grid, tmp_path/'store', home.model)
    code = ('from navira.prism import prism\nfrom navira.sampler.registry import register\n'
            '@register("mine")\ndef mine(eta: float = .1): return prism(eta)\n')
    swept(code, 'mine'), swept(code, 'mine')
    with pytest.raises(ValueError, match='mine was sampled by other code'):
        swept(code.replace('(eta)', '(2 * eta)'), 'mine')

# --- measured
@pytest.fixture
def one(home): # a sweep of two cells
    return replace(home.sweep, entries=home.sweep.entries[:1])

@pytest.fixture
def measured(home, one, tmp_path):
    "A store of one's own"
    return run(one, tmp_path/'store', home.model)

def test_only_what_is_missing_is_measured(measured, judge, home, one, monkeypatch):
    import navira.experiments.measure as measure
    rows, f = [], measure.OF_TOKENS['entropy']
    monkeypatch.setitem(measure.OF_TOKENS, 'entropy', lambda x: rows.append(len(x)) or f(x))
    evaluate(measured), evaluate(measured)
    assert rows == [10, 10] and frame(measured).judge.isna().all()
    st = run(replace(one, n=24), measured.folder, home.model)
    evaluate(st)
    assert sum(rows) == 48 and frame(st).entropy.notna().all()
    evaluate(st, ['perplexity', 'sets'], judge, scored=8)
    df, sets = frame(st), st.read('sets').to_pandas()
    assert set(df.judge) == {'random'} and df.nll.notna().sum() == 16
    assert (df.weight[df.nll.notna()] > 0).all() and (sets.low <= sets.value).all()
    with pytest.raises(KeyError, match="'smollm': expected one of random"): frame(st, 'smollm')

def test_a_small_copy_makes_the_same_frame_and_no_more_samples(home, tmp_path, measured):
    evaluate(measured)
    cells = {k: c | dict(keep=3) for k, c in measured.cells.items()}
    st = write_record(measured.folder, measured.record | dict(cells=cells))
    small = compact(st, tmp_path/'small')
    assert frame(small).drop(columns='store').equals(frame(st).drop(columns='store'))
    key = next(iter(small.cells))
    assert torch.equal(tokens(small, key), tokens(st, key)[:3])
    with pytest.raises(ValueError, match='small copy'): run(home.sweep, small.folder, home.model)
    with pytest.raises(ValueError, match='does not hold them all'): evaluate(small, ['sets'])
    with pytest.raises(ValueError, match='not empty'): compact(st, tmp_path/'small')

@pytest.mark.parametrize('expected, how', [
    ("reference 'none': perplexity", dict(metrics=['perplexity'], reference='none')),
    ('expected a `Server`', dict(metrics=['marks'])), ('scored=0', dict(scored=0))])
def test_what_cannot_be_measured_is_named(home, expected, how):
    with pytest.raises((KeyError, ValueError), match=expected): evaluate(home.store, **how)

def test_a_store_of_earlier_rules_is_read_and_not_swept(home, measured):
    path = measured.folder/'store.json'
    old = json.loads(path.read_text())
    assert old.pop('rules') == RULES
    path.write_text(json.dumps(old))
    assert frame(measured.folder).equals(frame(measured))
    assert 'drawn by rules 1' in note(points(frame(measured.folder)))
    with pytest.raises(ValueError, match=f'rules: 1 in the store, {RULES} now'):
        run(home.sweep, measured.folder, home.model)
