"""A store as its users treat it: killed, interrupted, on a full disk, in two processes, damaged,
extended, measured."""
import errno, json, math, os, random, runpy, shutil, signal, time
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from navira.sampler import registry
from navira.base.runs import folder_lock, Interrupted
from navira.sampler.draws import RULES
from navira.experiments.results import frame, judges, note, points, tokens, trajectory
from navira.experiments.judged import unjudged
from navira.experiments.measure import evaluate, real_windows
from navira.experiments.run import resample, run, work
from navira.experiments.store import compact, open_store, write_record, write_table
from navira.experiments.sweep import Entry
from helpers.experiments import cli, corpus, home, judge, one_thread_each, same  # noqa: F401

# --- killed and interrupted
def n_parts(folder):
    "`os.walk`, as folders of parts go while we look"
    return sum(n.endswith('.parquet') for _, _, names in os.walk(folder) for n in names
               if not n.startswith('.'))

def killed_and_resumed(home, folder, kills):
    "SIGKILL at random moments of a real process, then a run that is left alone."
    rng, caught = random.Random(time.time_ns()), 0
    for at in sorted(rng.sample(range(1, 22), kills)):
        p = cli('sweep', home.config, '--store', folder)
        while p.poll() is None and n_parts(folder) < at: time.sleep(.002)
        time.sleep(rng.random() * .03)
        caught += p.poll() is None
        p.kill(); p.communicate()
    assert caught
    assert same(run(home.sweep, folder), home.store)

def test_kill_9_and_resume(home, tmp_path): killed_and_resumed(home, tmp_path/'store', 2)

@pytest.mark.parametrize('call', [0, 11, 24])
@pytest.mark.parametrize('full', [False, True], ids=['dead', 'disk full'])
def test_dies_at_any_write(home, tmp_path, monkeypatch, call, full):
    "Between the bytes and the new name, at every kind of write: a part, a table"
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

@pytest.fixture
def stopping(monkeypatch):
    "A signal after the nth piece that is written, once"
    def after(n, sig=signal.SIGINT):
        written = []
        def write(path, table):
            write_table(path, table)
            written.append(path)
            if len(written) == n: signal.raise_signal(sig)
        monkeypatch.setattr('navira.experiments.run.write_table', write)
    return after

@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_piece(home, tmp_path, stopping, sig):
    stopping(2, sig)
    with pytest.raises(Interrupted, match='stopped after 2 of 24.*same command again'):
        run(home.sweep, tmp_path/'store', home.model)
    assert n_parts(tmp_path/'store') == 2
    assert same(run(home.sweep, tmp_path/'store', home.model), home.store)

def test_a_piece_is_made_once(tmp_path):
    from pyarrow import table
    made = []
    def make(i): return lambda: made.append(i) or table(dict(a=[i]))
    pieces = {tmp_path/f'{i}.parquet': make(i) for i in range(3)}
    work('making', pieces), work('making', pieces)
    assert made == [0, 1, 2]

def test_two_processes_make_the_same_store(home, tmp_path):
    launch = ('-m', 'accelerate.commands.launch', '--cpu', '--num_processes', '2',
              '--main_process_port', '0',
              '-m', 'navira.cli', 'sweep', home.config, '--store', tmp_path/'store')
    import sys
    p = cli(*launch, prefix=(sys.executable,))
    text, _ = p.communicate(timeout=300)
    assert p.returncode == 0, text
    assert same(open_store(tmp_path/'store'), home.store)

# --- another sweep in the same folder
def test_only_one_at_a_time(home, tmp_path):
    with folder_lock(tmp_path/'store'), pytest.raises(ValueError,
                                                      match='another sweep or evaluate is writing'):
        run(home.sweep, tmp_path/'store', home.model)

@pytest.mark.parametrize('change',
                         [dict(length=8), dict(batch_size=5), dict(dtype='bfloat16'),
                          dict(prompt='we saw')], ids=str)
def test_a_sweep_of_another_kind_is_refused(home, change):
    with pytest.raises(ValueError,
                       match=f'another kind: {next(iter(change))}: .* in the store, .* now'):
        run(replace(home.sweep, **change), home.store.folder, home.model)

def test_more_samples_are_those_of_a_larger_sweep(home, tmp_path):
    run(home.sweep, tmp_path/'grown', home.model)
    larger = replace(home.sweep, n=13)
    assert same(run(larger, tmp_path/'grown', home.model),
                run(larger, tmp_path/'whole', home.model))

def test_a_second_sweep_forgets_nothing(home, tmp_path):
    st = run(home.sweep, tmp_path/'store', home.model)
    less = replace(home.sweep,
                   entries=(Entry('prism', hyper=dict(eta=.2), n=3), Entry('mdlm', trace=True)))
    more = run(less, tmp_path/'store', home.model)
    assert more.cells.keys() > st.cells.keys()
    assert all(more.cells[k]['n'] == c['n'] and more.cells[k]['trace'] == c['trace'] for k,
               c in st.cells.items())
    new = [k for k in more.cells if k not in st.cells]
    removed, written = trajectory(more, new[0])
    assert written.any(0).all() and not removed.any()
    untraced = next(k for k, c in st.cells.items() if not c['trace'])
    with pytest.raises(ValueError, match='without a trace'): trajectory(st, untraced)

# --- what is in it
def test_a_store_holds_what_sample_gives(home):
    for key, c in home.store.cells.items():
        res = resample(c, home.store.record, home.model, 4, 4)
        assert torch.equal(tokens(home.store, key)[4:8], res.tokens)
        if c['trace']:
            remasked, written = trajectory(home.store, key)
            assert torch.equal(remasked[:, 4:8],
                               res.trace.remasked) and torch.equal(written[:, 4:8],
                                                                   res.trace.unmasked)

@pytest.fixture
def copied(home, tmp_path):
    shutil.copytree(home.store.folder, tmp_path/'copied')
    return tmp_path/'copied'

def cut(path): path.write_bytes(path.read_bytes()[:-40])

def without(column):
    def change(path): pq.write_table(pq.read_table(path).drop_columns([column]), path)
    return change

def twice(path):
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)

def pipe(path):
    path.unlink()
    os.mkfifo(path)

def record(**new): # a cell's value where the cell has one
    def change(path):
        old = json.loads(path.read_text())
        cells = {k: c | {x: v for x, v in new.items() if x in c} for k, c in old['cells'].items()}
        path.write_text(json.dumps(old | dict(cells=cells) | {
            x: v for x, v in new.items() if x in old}))
    return change

def filled(name, value): # a column of one value
    def change(path):
        table = pq.read_table(path)
        if name in table.column_names: table = table.drop_columns([name])
        pq.write_table(table.append_column(name, [[value] * len(table)]), path)
    return change

NUMBERS = [('n_forward', -5.), ('n_forward', math.inf), ('n_forward', 'x'), ('n_forward', None),
           ('solved', .5), ('solved', 7), ('n_remasked', [1]), ('sample', None), ('cell', 5),
           ('tokens', 5), ('tokens', [1, 2]), ('tokens', [-1] * 12), ('seconds', dict(a=1)),
           ('remasked', [[99]]), ('entropy', -1.)]

DAMAGED = [
    *[('samples.parquet', filled(*column), f'damaged column {column[0]}') for column in NUMBERS],
    ('samples.parquet', cut, 'samples.parquet'), ('tokenizer.json', cut, 'tokenizer.json'),
    ('store.json', cut, 'store.json: damaged'),
    ('store.json', lambda path: path.write_text('5'), 'store.json: damaged'),
    *[('store.json', record(**{k: v}), f'{k} = ') for k, v in dict(
        length='8', prompt=[1], cells=[], n='x', settled=[], matched=1, label=3,
        budget=-5).items()],
    ('samples.parquet', without('cell'), 'samples.parquet'),
    ('samples.parquet', without('sample'), 'samples.parquet'),
    ('samples.parquet', twice, 'a sample stands there twice'), ('samples.parquet', pipe, 'pipe')]

@pytest.mark.parametrize('name, change, expected', DAMAGED)
def test_damage_is_named(copied, name, change, expected):
    change(copied/name)
    with pytest.raises(ValueError, match=expected):
        frame(open_store(copied)), open_store(copied).tokenizer

def test_a_store_of_which_nothing_is_finished_says_so(home, copied):
    "Also one with a piece of a cell, and one without cells"
    whole = pq.read_table(copied/'samples.parquet')
    pq.write_table(whole[:3], copied/'samples.parquet')
    for _ in range(2):
        for f in evaluate, frame, lambda st: unjudged(st, 'm'):
            with pytest.raises(ValueError, match='none of its 8 cells is finished'):
                f(open_store(copied))
        if (copied/'samples.parquet').exists(): (copied/'samples.parquet').unlink()
    one = open_store(copied)
    cell = whole['cell'][0].as_py()
    pq.write_table(whole.filter(pc.field('cell') == cell), copied/'samples.parquet')
    assert evaluate(one).finished == [cell] and len(frame(one)) == 10
    assert len(points(frame(one))) == 1
    write_record(copied, one.record | dict(cells={}))
    with pytest.raises(ValueError, match='none of its 0 cells'): frame(copied)

def test_other_code_under_a_swept_name_is_refused(home, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, '_registry', registry.policies())     # forgets it afterwards
    sweep = replace(home.sweep, entries=(Entry('backbone'),))
    def swept(code, policy):
        (tmp_path/'mine.py').write_text(code)
        runpy.run_path(str(tmp_path/'mine.py'))
        grid = replace(sweep, entries=(Entry(policy),), n=1, budgets=(4,))
        return run(grid, tmp_path/'store', home.model)
    code = ('from navira.prism import prism\nfrom navira.sampler.registry import register\n'
            '@register("mine")\ndef mine(eta: float = .1): return prism(eta)\n')
    swept(code, 'mine'), swept(code, 'mine')
    for other, name in (code.replace('(eta)', '(2 * eta)'), 'mine'), (code + '# \n', 'mine'):
        with pytest.raises(ValueError, match='mine was sampled by other code'): swept(other, name)
    swept(code, 'prism')
    with pytest.raises(ValueError, match='prism was sampled'):
        swept(code.replace('"mine"', '"prism"'), 'prism')

def test_a_folder_that_is_no_store(tmp_path, home):
    with pytest.raises(FileNotFoundError, match='whole'): open_store(home.folder/'whol')
    with pytest.raises(FileNotFoundError, match='no store.json'): open_store(tmp_path)
    (tmp_path/'file').write_text('')
    with pytest.raises(ValueError, match='file'): run(home.sweep, tmp_path/'file', home.model)

# --- measured
@pytest.fixture
def measured(home, tmp_path):
    "A store of one's own"
    return run(replace(home.sweep, entries=home.sweep.entries[:1]), tmp_path/'store', home.model)

def test_only_what_is_missing_is_measured(measured, judge, home, monkeypatch):
    import navira.experiments.measure as ex_run
    rows, f = [], ex_run.OF_TOKENS['entropy']
    monkeypatch.setitem(ex_run.OF_TOKENS, 'entropy', lambda x: rows.append(len(x)) or f(x))
    evaluate(measured), evaluate(measured)
    assert rows == [10, 10] and judges(measured) == []
    st = run(replace(home.sweep, entries=home.sweep.entries[:1], n=14), measured.folder, home.model)
    evaluate(st)
    assert sum(rows) == 28 and frame(st).entropy.notna().all()
    evaluate(st, ['perplexity'], judge, scored=8)
    df = frame(st)
    assert judges(st) == ['random'] and df.nll.notna().sum() == 16 and (df.weight[df.nll.notna()]
                                                                        > 0).all()
    with pytest.raises(KeyError, match="reference 'smollm': expected one of random"): frame(st,
                                                                                            'smollm')

def test_an_interrupted_evaluation_goes_on(measured, stopping):
    stopping(1)
    with pytest.raises(Interrupted, match='1 of 2'): evaluate(measured, ['repetition'])
    evaluate(measured, ['repetition'])
    assert frame(measured).repetition.notna().all() and not n_parts(measured.folder/'parts')

def test_sets_and_mauve(home, judge, tmp_path):
    pytest.importorskip('mauve')
    corpus(tmp_path/'real.txt')
    s = replace(home.sweep, entries=home.sweep.entries[:1], budgets=(4,), n=60, batch_size=60,
                features=4, scored=7,
                real=str(tmp_path/'real.txt'), metrics=('entropy', 'sets'))
    st = evaluate(run(s, tmp_path/'s', home.model), reference=judge)
    sets = st.read('sets').to_pandas().set_index('metric')
    assert {'distinct_2', 'self_bleu',
            'mauve'} <= set(sets.index) and (sets.low <= sets.value).all()
    small = compact(st, tmp_path/'small')
    assert small.read('sets').equals(st.read('sets')) and small.record['real'] == 'real.txt'
    with pytest.raises(ValueError, match='not empty'): compact(st, tmp_path/'small')
    st.record['length'] = 1500
    with pytest.raises(ValueError, match='two windows'): real_windows(st, 4)

def test_a_small_copy_makes_the_same_frame_and_no_more_samples(home, tmp_path, measured):
    evaluate(measured)
    record = json.loads((measured.folder/'store.json').read_text())
    for c in record['cells'].values(): c['keep'] = 3
    (measured.folder/'store.json').write_text(json.dumps(record))
    st = open_store(measured.folder)
    small = compact(st, tmp_path/'small')
    both = [frame(s).drop(columns='store') for s in (small, st)]
    assert both[0].equals(both[1])
    key = next(iter(small.cells))
    assert torch.equal(tokens(small, key), tokens(st, key)[:3])
    with pytest.raises(ValueError, match='small copy'): run(home.sweep, small.folder, home.model)
    with pytest.raises(ValueError, match='does not hold them all'): evaluate(small, ['sets'])

def test_what_needs_a_reference_says_so(measured):
    with pytest.raises(ValueError, match="reference 'none': perplexity"):
        evaluate(measured, ['perplexity'], 'none')
    with pytest.raises(KeyError,
                       match="metric 'entropi': did you mean 'entropy'"): evaluate(measured,
                                                                                   ['entropi'])
    with pytest.raises(ValueError, match='scored=0'): evaluate(measured, scored=0)

def test_a_store_of_earlier_rules_is_read_and_not_swept(home, measured):
    path = measured.folder/'store.json'
    record = json.loads(path.read_text())
    assert record.pop('rules') == RULES
    path.write_text(json.dumps(record))
    assert frame(measured.folder).equals(frame(measured))
    assert 'drawn by rules 1' in note(points(frame(measured.folder)))
    with pytest.raises(ValueError, match=f'rules: 1 in the store, {RULES} now'):
        run(home.sweep, measured.folder, home.model)
