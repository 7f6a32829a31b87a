"""The grid of notebook 12 as its users treat it: killed, interrupted, on a full disk, in two processes, with files damaged, extended, misconfigured."""
import errno, inspect, json, os, random, resource, signal, subprocess, sys, threading, time
from pathlib import Path
from types import SimpleNamespace

import pytest, torch
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

import navira.experiments as ex
from navira import metrics
from navira.cli import _bench, main, out
from navira.denoiser import save
from navira.sampling import policies, policy, sample
from toys import random_joint, small_lm

ENTRIES = [dict(policy='prism', trace=True, eta=.2), dict(policy='navira', tau=.2, vary=dict(eta=[.1, .3])), dict(policy='backbone')]
CONFIG = dict(n=10, batch_size=4, budgets=[4, 8], metrics=['entropy'], entries=ENTRIES)


WORDS = '. we saw a red fox and it ran away'.split()

def words():
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token='.'))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return tok

def toml(d):
    "Enough of TOML for a configuration; JSON's lists, texts and numbers are TOML's"
    tables = d.get('entries', [])
    def value(v): return '{' + ', '.join(f'{k} = {value(x)}' for k, x in v.items()) + '}' if isinstance(v, dict) else json.dumps(v)
    lines = [f'{k} = {value(v)}' for k, v in d.items() if k != 'entries']
    return '\n'.join(lines + ['[[entries]]\n' + '\n'.join(f'{k} = {value(v)}' for k, v in t.items()) for t in tables])

@pytest.fixture(scope='module', autouse=True)
def one_thread_each():
    "As in the processes that are started here: on a CPU a batch is shared out among threads, and its shape decides the last bit"
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)

@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    "Nobody's own: what was measured is not kept beyond a test"
    monkeypatch.setattr(ex, 'cache_folder', lambda: tmp_path / 'cache')
    return tmp_path / 'cache'

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A model on disk, a configuration that names it, and the store of an undisturbed sweep."
    home = tmp_path_factory.mktemp('grid')
    model = small_lm(seed=3); model.tokenizer = words()
    save(model, home / 'model')
    (home / 'grid.toml').write_text(toml(CONFIG | dict(model=str(home / 'model'))))
    sweep = ex.read_sweep(home / 'grid.toml')
    store = ex.run(sweep, home / 'whole')
    return SimpleNamespace(folder=home, config=home / 'grid.toml', sweep=sweep, model=ex.load_model(home / 'model'), store=store)

def contents(store):
    "What a store says, timings and the places it was made in aside."
    out = {}
    for key in store.keys:
        table, about = ex.checked(store.cell(key))
        out[key] = table.drop_columns(['seconds']).to_pydict(), about
    return out

def clean(store):
    "Nothing half-done: no parts, no temporary files."
    return not list(store.folder.glob('parts/*')) and not [p for p in store.folder.rglob('.*') if p.name.endswith('.tmp')]

def same(a, b): return contents(a) == contents(b) and clean(a) and clean(b)

def cli(*args, prefix=(sys.executable, '-m', 'navira.cli'), **kw):
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '', 'COLUMNS': '200', **kw.pop('env', {})}
    return subprocess.Popen([*prefix, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, **kw)


# --- killed ------------------------------------------------------------------------------------------------------------------

def finished(folder):
    "Batches that are in files: a cell is three. `os.walk`, as folders of parts go while we look, and `glob` fails when one does."
    return sum(3 if Path(at).name == 'cells' else 1 for at, _, names in os.walk(folder) if Path(at).parent.name == 'parts' or Path(at).name == 'cells'
               for name in names if name.endswith('.parquet') and not name.startswith('.'))

def killed_and_resumed(home, folder, kills):
    "SIGKILL at random moments of a real process, then a run that is left alone."
    rng, caught, before = random.Random(time.time_ns()), 0, 0
    for kill_at in sorted(rng.sample(range(1, 22), kills)):
        p = cli('sweep', home.config, '--store', folder)
        while p.poll() is None and finished(folder) < kill_at: time.sleep(.002)
        time.sleep(rng.random() * .03)
        caught += p.poll() is None
        p.kill(); p.communicate()
        left = len(list(folder.glob('cells/*.parquet')))
        assert left >= before; before = left                  # what was finished stays finished
    assert caught
    assert same(ex.run(home.sweep, folder), home.store)

def test_kill_9_and_resume(home, tmp_path): killed_and_resumed(home, tmp_path / 'store', 3)

@pytest.mark.slow
@pytest.mark.parametrize('time_of_day', range(4))
def test_kill_9_often(home, tmp_path, time_of_day):
    "20 kills, five for each of four stores"
    killed_and_resumed(home, tmp_path / 'store', 5)

@pytest.mark.parametrize('call', range(0, 33, 4))
def test_dies_at_any_write(home, tmp_path, monkeypatch, call):
    "Death between the bytes and the new name, at every kind of write in turn: a part, a cell, and right after a cell was written but before its parts went"
    class Dead(BaseException): pass
    calls, write = iter(range(10**6)), ex.pq.write_table
    def dying(table, path, **kw):
        write(table, path, **kw)
        if next(calls) == call: raise Dead
    monkeypatch.setattr(ex.pq, 'write_table', dying)
    try: ex.run(home.sweep, tmp_path / 'store')
    except Dead: pass
    monkeypatch.undo()
    (tmp_path / 'store' / 'cells').mkdir(exist_ok=True)
    (tmp_path / 'store' / 'cells' / '.navira-1073741824-0123456789abcdef.tmp').write_bytes(b'PAR1')     # what a kill leaves, where an exception cleans up
    assert same(ex.run(home.sweep, tmp_path / 'store'), home.store)

def test_parts_that_a_kill_left_beside_their_cell(home, tmp_path, monkeypatch):
    monkeypatch.setattr(ex.shutil, 'rmtree', lambda *a, **kw: None)
    store = ex.run(home.sweep, tmp_path / 'store')
    assert list(store.folder.glob('parts/*/*.parquet'))
    monkeypatch.undo()
    assert same(ex.run(home.sweep, store.folder), home.store)


# --- several processes ---------------------------------------------------------------------------------------------------------

def test_two_processes_make_the_same_store(home, tmp_path):
    launch = (sys.executable, '-m', 'accelerate.commands.launch', '--multi_gpu', '--num_processes', '2', '--num_machines', '1', '--mixed_precision', 'no', '--dynamo_backend', 'no',
              '--main_process_port', str(random.randint(20000, 60000)), '-m', 'navira.cli')
    p = cli('sweep', home.config, '--store', tmp_path / 'two', prefix=launch)
    text, _ = p.communicate(timeout=900)
    assert p.returncode == 0, text[-3000:]
    store = ex.open_store(tmp_path / 'two')
    assert store.record['places'][0]['processes'] == 2 and store.record['places'][0]['threads'] == 1
    assert same(store, home.store)

@pytest.mark.parametrize('n', [2, 3])
def test_dealt_out(home, tmp_path, monkeypatch, n):
    "Processes one after the other: each does its share and no more, the last, which is the first, puts everything together"
    done = []
    compute = ex.compute
    monkeypatch.setattr(ex, 'compute', lambda b, *a: done.append((b.key, b.first)) or compute(b, *a))
    todo = ex.to_do
    plans = {}
    for rank in (*range(1, n), 0):
        monkeypatch.setattr(ex, 'processes', lambda device, rank=rank: SimpleNamespace(is_main_process=rank == 0, process_index=rank, num_processes=n, device=torch.device('cpu'), wait_for_everyone=lambda: None))
        monkeypatch.setattr(ex, 'to_do', lambda *a: plans.setdefault('all', todo(*a)))      # all read the folder before anybody writes
        if rank == 1: ex.claim(tmp_path / 'store', ex.replace(home.sweep, length=12), {k: home.store.record[k] for k in ex.IDENTITY}, home.model.tokenizer, {})
        ex.run(home.sweep, tmp_path / 'store', home.model)
    assert len(done) == len(set(done)) == 24
    assert same(ex.open_store(tmp_path / 'store'), home.store)

def test_only_one_at_a_time(home, tmp_path):
    with ex.alone(tmp_path / 'store'), pytest.raises(ValueError, match='another sweep or evaluate is writing'): ex.run(home.sweep, tmp_path / 'store', home.model)
    assert same(ex.run(home.sweep, tmp_path / 'store', home.model), home.store)


# --- interrupted -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_batch(home, tmp_path, sig):
    folder, calls = tmp_path / 'store', []
    def progress(cell, done, total):
        calls.append(done / total)
        if len(calls) == 6: signal.raise_signal(sig)           # in the middle of the second batch: four steps each
    with pytest.raises(ex.Interrupted, match='stopped after 2 of 24 batches.*same command again'): ex.run(home.sweep, folder, home.model, progress)
    assert len(list(folder.glob('parts/*/*.parquet'))) == 2 and signal.getsignal(sig) != signal.SIG_IGN
    assert same(ex.run(home.sweep, folder, home.model), home.store)
    assert calls == sorted(calls) and calls[-1] <= 1

def test_second_ctrl_c_stops_at_once(home, tmp_path):
    def progress(cell, done, total): signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as e: ex.run(home.sweep, tmp_path / 'store', home.model, progress)
    assert not isinstance(e.value, ex.Interrupted) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert same(ex.run(home.sweep, tmp_path / 'store', home.model), home.store)

def test_ctrl_c_while_threads_share_a_batch(home, tmp_path, two_threads):
    "Rows are counted whichever thread made them; the first Ctrl-C still finishes the batch, a second one stops the threads"
    seen = []
    def progress(cell, done, total):
        seen.append(done / total)
        if len(seen) == 3: signal.raise_signal(signal.SIGINT)         # in the first batch: two threads, four steps each
    with pytest.raises(ex.Interrupted, match='stopped after 1 of 24 batches'): ex.run(home.sweep, tmp_path / 'store', home.model, progress)
    assert len(seen) == 8 and seen == sorted(seen) and len(set(seen)) == 8
    presses = iter(range(2))
    def press(*a):
        if next(presses, None) is not None: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)     # as from a terminal: what a worker raises waits until the main thread wakes
        time.sleep(.05)
    with pytest.raises(KeyboardInterrupt) as e: ex.run(home.sweep, tmp_path / 'store', home.model, press)
    assert not isinstance(e.value, ex.Interrupted) and not [t for t in threading.enumerate() if t.name.startswith('ThreadPool')]
    assert len(list((tmp_path / 'store').glob('parts/*/*.parquet'))) == 1

def test_ctrl_c_in_a_process(home, tmp_path):
    p = cli('sweep', home.config, '--store', tmp_path / 'store')
    while p.poll() is None and not finished(tmp_path / 'store'): time.sleep(.002)
    p.send_signal(signal.SIGINT)
    text, _ = p.communicate(timeout=300)
    assert 'finishing the batch at hand' in text
    assert p.returncode == 130 and 'give the same command again to go on' in text and 'Traceback' not in text, text
    assert same(ex.run(home.sweep, tmp_path / 'store'), home.store)


# --- a full disk -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('call', [0, 3, 9, 14])
def test_disk_full(home, tmp_path, monkeypatch, call):
    "The write fails after half of its bytes: a clean stop, nothing half-written, and the next run goes on"
    calls, write = iter(range(10**6)), ex.pq.write_table
    def full(table, path, **kw):
        write(table, path, **kw)
        if next(calls) >= call:
            os.truncate(path, os.path.getsize(path) // 2)
            raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(ex.pq, 'write_table', full)
    with pytest.raises(OSError, match='no space left.*same command again') as e: ex.run(home.sweep, tmp_path / 'store', home.model)
    assert e.value.errno == errno.ENOSPC
    monkeypatch.undo()
    files = list((tmp_path / 'store').rglob('*.parquet'))
    assert not [p for p in (tmp_path / 'store').rglob('*.tmp')]
    for p in files: ex.checked(p, first=int(p.stem.split('-')[0]) if p.parent.parent.name == 'parts' else 0)     # each is whole
    assert same(ex.run(home.sweep, tmp_path / 'store', home.model), home.store)

def test_disk_really_full(tmp_path):
    "The system itself refuses the bytes (a limit on the size of files): what was there before stays"
    path, table = tmp_path / 'a' / 't.parquet', ex.pa.table(dict(x=list(range(5000))))
    ex.write_table(path, table.slice(0, 3), dict(v=1))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
    try:
        with pytest.raises(OSError, match='no space left'): ex.write_table(path, table, dict(v=2))
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert ex.read_table(path)[1] == dict(v=1) and os.listdir(path.parent) == ['t.parquet']

def test_folder_that_cannot_be_written(home, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(ValueError, match='file'): ex.run(home.sweep, tmp_path / 'file', home.model)
    with pytest.raises(ValueError, match='cannot be made'): ex.run(home.sweep, tmp_path / 'file' / 'store', home.model)


# --- damage ------------------------------------------------------------------------------------------------------------------------

def flip(path):
    "A bit in the last data page of the tokens"
    tokens = ex.pq.read_metadata(path).row_group(0).column(1)
    b = bytearray(path.read_bytes()); b[tokens.data_page_offset + tokens.total_compressed_size - (tokens.data_page_offset - (tokens.dictionary_page_offset or tokens.data_page_offset)) - 3] ^= 64; path.write_bytes(bytes(b))

def foreign(path): ex.pq.write_table(ex.pa.table(dict(a=[1, 2])), path)

def from_elsewhere(path):
    table, about = ex.checked(path)
    ex.write_table(path, table, about | dict(dtype='bfloat16'))

def shuffled(path):
    table, about = ex.checked(path)
    ex.write_table(path, table.take(list(range(len(table)))[::-1]), about)

def other_tokens(path):
    table, about = ex.checked(path)
    rows = table['tokens'].to_pylist(); rows[3][0] = (rows[3][0] + 1) % 10
    ex.write_table(path, table.set_column(1, 'tokens', ex.pa.array(rows, table.schema.field('tokens').type)), about)

DAMAGE = dict(cut=lambda p: p.write_bytes(p.read_bytes()[:-100]), empty=lambda p: p.write_bytes(b''), bit=flip, foreign=foreign, text=lambda p: p.write_text('{}'), elsewhere=from_elsewhere,
              order=shuffled, tokens=other_tokens)

def said(change):
    def damage(path):
        table, about = ex.checked(path)
        ex.write_table(path, table, change(about))
    return damage

def tokens_as(make):
    def damage(path):
        table, about = ex.checked(path)
        rows = make(table['tokens'].to_pylist())
        crc = table['crc'] if any(not 0 <= t < 2**31 for r in rows for t in r) else ex.pa.array(ex.checksums(rows))
        ex.write_table(path, table.set_column(1, 'tokens', ex.pa.array(rows, ex.pa.list_(ex.pa.int64()))).set_column(2, 'crc', crc), about)
    return damage

def twice(path):
    table, about = ex.checked(path)
    ex.write_table(path, ex.pa.concat_tables([table, table]), about)

DAMAGE |= dict(another=lambda p: p.write_bytes(next(q for q in sorted(p.parent.glob('*.parquet')) if q != p).read_bytes()), a_list=said(lambda about: [1]), no_key=said(lambda about: {k: v for k, v in about.items() if k != 'key'}),
               no_label=said(lambda about: {k: v for k, v in about.items() if k != 'label'}), wrong_kind=said(lambda about: about | dict(n_steps='four')), twice=twice,
               huge=tokens_as(lambda rows: [[2**40] * 12] + rows[1:]), negative=tokens_as(lambda rows: [[-1] * 12] + rows[1:]), short=tokens_as(lambda rows: [rows[0][:-1]] + rows[1:]))
ONLY_TOKENS = ('order', 'tokens', 'bit', 'huge', 'negative', 'short')      # seen only where tokens are read

@pytest.mark.parametrize('how', DAMAGE)
def test_damaged_cell(home, tmp_path, how):
    "Named, set aside, computed again; while it is damaged, tables do without it and say so"
    store = ex.run(home.sweep, tmp_path / 'store', home.model)
    path = store.cell(store.keys[2])
    DAMAGE[how](path)
    if how not in ONLY_TOKENS:
        with pytest.warns(UserWarning, match=f'{path.name}.*left out'): assert set(ex.load(store).key) == set(store.keys) - {path.stem}
    with pytest.warns(UserWarning, match=f'{path.name}.*set aside'): store = ex.run(home.sweep, store.folder, home.model)
    assert same(store, home.store) and path.with_name(path.name + '.damaged').exists()

def test_damaged_parts(home, tmp_path):
    folder, calls = tmp_path / 'store', []
    def progress(cell, done, total):
        calls.append(done)
        if len(calls) == 6: signal.raise_signal(signal.SIGINT)      # in the second of three batches
    with pytest.raises(ex.Interrupted): ex.run(home.sweep, folder, home.model, progress)
    parts = sorted(folder.glob('parts/*/*.parquet'))
    assert len(parts) == 2
    parts[0].write_bytes(parts[0].read_bytes()[:-9])
    parts[0].with_name('first.parquet').write_bytes(b'')
    with pytest.warns(UserWarning, match='set aside'): assert same(ex.run(home.sweep, folder, home.model), home.store)

def test_lost_or_broken_record(home, tmp_path):
    store = ex.run(home.sweep, tmp_path / 'store', home.model)
    (store.folder / 'sweep.json').write_text('{"name":')
    with pytest.raises(ValueError, match='no JSON'): ex.run(home.sweep, store.folder, home.model)
    (store.folder / 'sweep.json').unlink()
    with pytest.raises(FileNotFoundError, match='no sweep.json'): ex.load(store.folder)
    assert same(ex.run(home.sweep, store.folder, home.model), home.store)

def test_a_cell_under_another_name_is_not_counted(home, tmp_path):
    "A copy beside the original, and a part of another cell: no text twice, wherever it is read"
    store = ex.run(home.sweep, tmp_path / 'store', home.model)
    before, key = len(ex.samples(store)), store.keys[0]
    copy = store.cell('0123456789ab')
    copy.write_bytes(store.cell(key).read_bytes())
    with pytest.warns(UserWarning, match=f'{copy.name}: the file of .{key}. under another name'): assert len(ex.samples(store)) == before
    for f in (ex.tokens, ex.texts, ex.trajectory):
        with pytest.raises(ex.Damaged, match='under another name'): f(store, copy.stem)
    with pytest.warns(UserWarning, match='under another name.*not measured'): ex.evaluate(store)
    assert not store.metric(copy.stem, 'entropy').exists()
    copy.unlink()
    entropy = store.metric(key, 'entropy')
    store.metric(store.keys[1], 'entropy').write_bytes(entropy.read_bytes()); store.metric(store.keys[2], 'entropy').write_bytes(b'')
    store.metric(key, 'repetition').write_bytes(entropy.read_bytes())
    with pytest.warns(UserWarning, match='under another name.*set aside'): df = ex.load(store)
    assert df.entropy.isna().sum() == 2 and 'repetition' not in df

@pytest.mark.parametrize('text, expected', [(b'', 'no JSON'), (b'{"name": "a", "config', 'no JSON'), (b'[1]', 'a list, expected a table'), (b'"x"', 'a str'), (b'{}', 'name=None'), (b'{"caf\xe9": 1}', 'no JSON'), (b'[' * 100000, 'no JSON')])
def test_a_record_that_is_none(home, tmp_path, text, expected):
    "Every command says what is wrong with it, and what to do"
    path = tmp_path / 'store' / 'sweep.json'
    path.parent.mkdir(); path.write_bytes(text)
    for f in (lambda: ex.open_store(path.parent), lambda: ex.load(path.parent), lambda: ex.evaluate(path.parent), lambda: ex.run(home.sweep, path.parent, home.model)):
        with pytest.raises(ValueError, match=f'sweep.json: {expected}.*delete it and give the `navira sweep` command again'): f()
    assert path.read_bytes() == text

@pytest.mark.parametrize('change', [dict(config=5), dict(config={}), dict(sweeps=[]), dict(sweeps={'a': 3}), dict(asked={'none': {}}), dict(asked={'grid': []}), dict(places={}), dict(length='12'), dict(own=[])], ids=str)
def test_a_record_with_something_else_in_it(home, tmp_path, change):
    (tmp_path / 'sweep.json').write_text(json.dumps(home.store.record | change))
    with pytest.raises(ValueError, match='sweep.json: .*delete it and give the `navira sweep` command again'): ex.open_store(tmp_path)

def test_any_record(home, tmp_path):
    "A field less, or of another kind: a sentence, or a store that reads"
    store = ex.run(ex.replace(home.sweep, entries=home.sweep.entries[:1], budgets=(4,)), tmp_path / 'store', home.model)
    for where in ((), ('config',)):
        for k in [*(store.record['config'] if where else store.record)]:
            for new in (None, 5, 'x', [], {}):
                record = json.loads(json.dumps(store.record)); (record['config'] if where else record)[k] = new
                (store.folder / 'sweep.json').write_text(json.dumps(record))
                try: ex.load(store.folder); ex.evaluate(store.folder, ['entropy'])
                except (ValueError, KeyError, FileNotFoundError) as e: assert len(str(e)) > 30, (where, k, new, e)

def test_a_damaged_tokenizer(home, tmp_path):
    "Named where it is read, written anew by the next sweep; another model's, or somebody's own file, is refused"
    store = ex.run(home.sweep, tmp_path / 'store', home.model)
    path, good = store.folder / 'tokenizer.json', (store.folder / 'tokenizer.json').read_bytes()
    for bad in (b'', b'{"model"', b'\xff', b'[]'):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match='tokenizer.json: no readable tokenizer.*`navira sweep` command again'): ex.texts(ex.open_store(store.folder), store.keys[0])
        with pytest.warns(UserWarning, match='set aside as tokenizer.json.damaged'): ex.run(home.sweep, store.folder, home.model)
        assert Tokenizer.from_file(str(path)).get_vocab() == home.model.tokenizer.get_vocab()
    other = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS[::-1])}, unk_token='.'))
    other.save(str(path)); foreign = path.read_bytes()
    with pytest.raises(ValueError, match='tokenizer.json: not the tokenizer of the model'): ex.run(home.sweep, store.folder, home.model)
    (tmp_path / 'mine').mkdir()
    for mine in (foreign, b'notes'):
        (tmp_path / 'mine' / 'tokenizer.json').write_bytes(mine)
        with pytest.raises(ValueError, match='tokenizer.json: .*name another folder'): ex.run(home.sweep, tmp_path / 'mine', home.model)
        assert (tmp_path / 'mine' / 'tokenizer.json').read_bytes() == mine
    path.write_bytes(good); assert same(ex.run(home.sweep, store.folder, home.model), home.store)

def test_other_files_in_the_folder_stay(home, tmp_path):
    "`sweep --store .`: what a sweep removes carries the mark of a process of ours that is no more"
    store = ex.run(home.sweep, tmp_path / 'store', home.model)
    gone, here = (f'.navira-{pid}-{"0123456789abcdef"}.tmp' for pid in (2**30, 1))
    mine = ['.mine.tmp', 'lock', 'cells/.notes.tmp', f'cells/.{store.keys[0]}.parquet.tmp', 'cells/.tmp', f'cells/{here}', f'elsewhere/{gone}', 'cells/notes.txt', '.sweep.json.tmp']
    left = [gone, f'cells/{gone}', f'metrics/{gone}', f'parts/{store.keys[0]}/{gone}']
    for name in mine + left:
        (store.folder / name).parent.mkdir(parents=True, exist_ok=True); (store.folder / name).write_text('mine')
    ex.run(home.sweep, store.folder, home.model)
    assert [name for name in mine if not (store.folder / name).exists() or (store.folder / name).read_text() != 'mine'] == []
    assert [name for name in left if (store.folder / name).exists()] == []

DIFFERENT = dict(length=8, batch_size=5, dtype='bfloat16', prompt='we saw')

@pytest.mark.parametrize('what', [*DIFFERENT, 'fingerprint'])
def test_store_of_another_sweep(home, tmp_path, what):
    "Refused, with the difference, and nothing touched"
    before = {p: p.read_bytes() for p in home.store.folder.rglob('*') if p.is_file()}
    model = small_lm(seed=4) if what == 'fingerprint' else home.model
    with pytest.raises(ValueError, match=f'{what}: .* there, .* now'):
        ex.run(ex.replace(home.sweep, **{what: DIFFERENT[what]} if what in DIFFERENT else {}), home.store.folder, model)
    assert {p: p.read_bytes() for p in home.store.folder.rglob('*') if p.is_file()} == before


def test_a_batch_that_fails_is_named_and_not_stored(home, tmp_path, monkeypatch):
    "As where a quality head gives NaN, and sampling says so"
    sampled = ex.sample
    def failing(model, made, budget, *a, **kw):
        if budget == 8 and made == ex.rule(ex.Cell('prism', 8, dict(eta=.2))): raise ValueError('the quality is NaN at position 3')
        return sampled(model, made, budget, *a, **kw)
    monkeypatch.setattr(ex, 'sample', failing)
    with pytest.raises(ValueError, match=r'prism at budget 8, seed 0 \([0-9a-f]{12}\): the quality is NaN at position 3\. Nothing of it is stored') as e: ex.run(home.sweep, tmp_path / 'store', home.model)
    key, left = str(e.value).partition('(')[2][:12], ex.open_store(tmp_path / 'store')
    assert key in home.store.keys and key not in left.keys and not list(left.folder.glob(f'parts/{key}/*')) and len(left.keys) == 4      # the smaller budget's
    monkeypatch.undo()
    assert same(ex.run(home.sweep, left.folder, home.model), home.store)


# --- extended ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('n', [10, 12, 15, 3])
def test_more_samples(home, tmp_path, n):
    "From 6 to n in batches of 4: what a fresh sweep of n gives; fewer than there are is no work"
    first = ex.run(ex.replace(home.sweep, n=6), tmp_path / 'store', home.model)
    written = {p: p.stat().st_mtime_ns for p in first.folder.glob('cells/*')}
    store, fresh = ex.run(ex.replace(home.sweep, n=n), first.folder, home.model), ex.run(ex.replace(home.sweep, n=max(n, 6)), tmp_path / 'fresh', home.model)
    tables = lambda s: {k: v[0] for k, v in contents(s).items()}
    assert tables(store) == tables(fresh) and clean(store)
    if n < 6: assert {p: p.stat().st_mtime_ns for p in store.folder.glob('cells/*')} == written

def test_more_entries_budgets_and_a_new_name(home, tmp_path, monkeypatch):
    store = ex.run(ex.replace(home.sweep, budgets=(4,), entries=home.sweep.entries[:2]), tmp_path / 'store', home.model)
    done, compute = [], ex.compute
    monkeypatch.setattr(ex, 'compute', lambda b, *a: done.append(b.key) or compute(b, *a))
    ex.run(home.sweep, store.folder, home.model)
    assert len(set(done)) == 5 and same(store, home.store)
    ex.run(ex.replace(home.sweep, entries=(ex.replace(home.sweep.entries[0], label='PRISM'), *home.sweep.entries[1:])), store.folder, home.model)
    assert len(set(done)) == 5 and set(ex.load(store).label) == {'PRISM', 'navira', 'backbone'}

def test_parts_of_another_shape_do_not_count(home, tmp_path):
    "Interrupted with 6 samples (batches of 4 and 2) and no trace, then asked for 10 with one"
    other = ex.replace(home.sweep, n=6, entries=(ex.replace(home.sweep.entries[0], trace=False), *home.sweep.entries[1:]))
    def progress(cell, done, total):
        if cell.budget == 4 and len(list((tmp_path / 'store').glob('parts/*/*.parquet'))) == 1: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): ex.run(other, tmp_path / 'store', home.model, progress)
    assert list((tmp_path / 'store').glob('parts/*/*.parquet'))
    assert same(ex.run(home.sweep, tmp_path / 'store', home.model), home.store)

def test_trace_asked_for_later(home, tmp_path):
    no = ex.replace(home.sweep, entries=(ex.replace(home.sweep.entries[0], trace=False),))
    store = ex.run(no, tmp_path / 'store', home.model)
    with pytest.raises(ValueError, match='without a trace'): ex.trajectory(store, store.keys[0])
    ex.run(home.sweep, store.folder, home.model)
    assert same(store, home.store)

def test_a_trace_for_fewer_samples_loses_none(home, tmp_path):
    "Ten without a trace, then six with one: there are ten with one"
    entry = home.sweep.entries[0]
    ex.run(ex.replace(home.sweep, entries=(ex.replace(entry, trace=False),)), tmp_path / 's', home.model)
    fewer = ex.replace(home.sweep, entries=(ex.replace(entry, trace=True),), n=6)
    assert ex.estimate(fewer, home.model, st=ex.open_store(tmp_path / 's')).samples.sum() == 20
    store = ex.run(fewer, tmp_path / 's', home.model)
    assert all(len(ex.checked(store.cell(k), True)[0]) == 10 for k in store.keys)


# --- configurations -------------------------------------------------------------------------------------------------------------------

MISTAKES = {
    'unknown setting': (dict(budget=[8]), "setting 'budget': did you mean 'budgets'?"),
    'unknown policy': (dict(entries=[dict(policy='prisma')]), "did you mean 'prism'?"),
    'unknown hyper-parameter': (dict(entries=[dict(policy='prism', etha=.1)]), "did you mean 'eta'?"),
    'hyper-parameter out of range': (dict(entries=[dict(policy='prism', eta=2.)]), 'eta=2.0'),
    'hyper-parameter of a wrong type': (dict(entries=[dict(policy='prism', eta='much')]), "eta='much'"),
    'unknown schedule': (dict(entries=[dict(policy='navira', tau=dict(schedule='cubic'))]), "schedule 'cubic'"),
    'unknown change': (dict(entries=[dict(policy='prism', change='refill')]), "did you mean 'refill-first'?"),
    'no policy': (dict(entries=[dict(label='x')]), 'expected a policy'),
    'no entries': (dict(entries=[]), 'at least one policy'),
    'budget too small': (dict(budgets=[1]), 'budget=1'),
    'budget no number': (dict(budgets=['many']), "budgets='many'"),
    'budget twice': (dict(budgets=[8, 8]), 'different whole numbers'),
    'no samples': (dict(n=0), 'n=0'),
    'no samples in an entry': (dict(entries=[dict(policy='prism', n=0)]), 'prism: n=0'),
    'vary what': (dict(entries=[dict(policy='prism', vary=dict(eta=[]))]), 'expected a list of values'),
    'vary no table': (dict(entries=[dict(policy='prism', vary=[1])]), 'prism: vary=[1]: expected a table'),
    'vary unknown': (dict(entries=[dict(policy='prism', vary=dict(tau=[1.]))]), "setting 'tau'"),
    'the same cell twice': (dict(entries=[dict(policy='prism'), dict(policy='prism', label='b', eta=.01)]), 'are the same cell'),
    'unknown metric': (dict(metrics=['mauv']), "metric 'mauv'"),
    'seeds that are one in 64 bits': (dict(seeds=[0, 2**64]), f'seeds={2**64}: expected a whole number of at least {-2**63} and at most {2**63 - 1}'),
    'a seed beyond 64 bits in an entry': (dict(entries=[dict(policy='prism', seeds=[-2**63 - 1])]), f'prism: seeds={-2**63 - 1}'),
    'label no text': (dict(entries=[dict(policy='prism', label=3)]), 'label=3: expected a text'),
    'hyper no table': (dict(entries=[dict(policy='prism', hyper=3)]), 'prism: hyper=3: expected a table'),
    'trace no switch': (dict(entries=[dict(policy='prism', trace='yes')]), "trace='yes': expected true or false"),
    'a list for a number': (dict(entries=[dict(policy='prism', eta=[.1])]), 'prism: eta=[0.1]: expected a number'),
    'a temperature of a wrong kind': (dict(entries=[dict(policy='navira', tau=dict(schedule='quadratic', tau_max='x'))]), "tau: tau_max='x': expected a number"),
    'a huge hyper-parameter': (dict(entries=[dict(policy='navira', tau=10**400)]), 'tau=1000'),
    'a huge count': (dict(entries=[dict(policy='informed-corrector', k=2**64)]), f'k={2**64}'),
    'a huge top_k': (dict(entries=[dict(policy='dream-origin', top_k=2**64)]), f'top_k={2**64}'),
    'a huge block': (dict(entries=[dict(policy='dus', block_length=10**8)]), 'block_length=100000000: expected a whole number of at least 1 and at most 65536'),
    'a huge skip': (dict(entries=[dict(policy='dus', skip=2**62)]), f'skip={2**62}: expected a whole number of at least 1 and at most 16'),
    'a huge budget': (dict(budgets=[10**9]), 'budget=1000000000: a one-pass policy needs a whole number of at least 1 and at most 1000000'),
    'a budget beyond floats': (dict(budgets=[10**400]), 'budgets=1000'),
    'a huge n': (dict(n=1e12), 'n=1000000000000.0: expected a whole number of at least 1 and at most 1000000'),
    'a huge n in an entry': (dict(entries=[dict(policy='prism', n=10**12)]), 'prism: n=1000000000000'),
    'length 0': (dict(length=0), 'length=0: expected a whole number of at least 1'),
    'metrics no list': (dict(metrics='entropy'), "metrics='entropy': expected a list"),
    'metrics a number': (dict(metrics=5), 'metrics=5: expected a list'),
    'others no table': (dict(others=[1]), 'others=[1]: expected a table'),
    'model no text': (dict(model=5), 'model=5: expected a text'),
    'prompt no text': (dict(prompt=[5]), 'prompt=[5]: expected a text'),
    'real no text': (dict(real=5), 'real=5: expected a text'),
    'reference no text': (dict(reference=['smollm2']), "reference=['smollm2']: expected a text"),
    'reference empty': (dict(reference=''), "reference='': empty"),
    'unknown dtype': (dict(dtype='float64'), "dtype 'float64'"),
    'unknown device': (dict(device='gpu'), "device 'gpu'"),
    'unknown eos rule': (dict(eos='onec'), "did you mean 'once'?"),
    'length too long': (dict(length=4096), 'length=4096'),
    'prompt fills the text': (dict(prompt='we saw a red fox and it ran away we saw a'), 'prompt'),
}

@pytest.mark.parametrize('case', MISTAKES)
def test_mistake_in_a_configuration(home, tmp_path, case, capsys):
    "One line that names the value, exit code 2, and no store made"
    change, expected = MISTAKES[case]
    (tmp_path / 'grid.toml').write_text(toml(CONFIG | dict(model=str(home.folder / 'model')) | change))
    with pytest.raises(SystemExit) as e: main(['sweep', str(tmp_path / 'grid.toml'), '--store', str(tmp_path / 'store')])
    printed = capsys.readouterr()
    assert e.value.code == 2 and expected in printed.err and len(printed.err.strip().splitlines()) == 1, printed
    assert not (tmp_path / 'store').exists()

@pytest.mark.parametrize('args, expected', [
    (['sweep', 'smal'], "did you mean 'small'?"), (['sweep', 'no/such.toml'], 'not found'), (['evaluate', '{store}x'], 'did you mean'), (['evaluate', '{store}', '--metrics', 'entropi'], "did you mean 'entropy'?"),
    (['evaluate', '{store}', '--metrics', 'perplexity', '--reference', 'smolm2'], "did you mean 'smollm2'?"), (['evaluate', '{folder}'], 'no sweep.json'), (['report', '{store}x'], 'did you mean')])
def test_mistake_in_a_command(home, capsys, args, expected):
    with pytest.raises(SystemExit) as e: main([a.format(store=home.store.folder, folder=home.folder) for a in args])
    printed = capsys.readouterr()
    assert e.value.code == 2 and expected in printed.err and 'Traceback' not in printed.err, printed

def test_what_only_toml_can_say(tmp_path):
    "A date is no hyper-parameter, a table no list"
    for line, expected in (('entries = {policy = "prism"}', "entries={'policy': 'prism'}: expected a list"), ('entries = ["prism"]', "entries: 'prism': expected a table"),
                           ('entries = [{policy = "prism", eta = 2024-01-01}]', r'prism: eta=datetime.date\(2024, 1, 1\): expected a number'),
                           ('entries = [{policy = "prism", vary = {eta = [0.1, 10:00:00]}}]', 'prism: eta=datetime.time'),
                           ('name = 2024-01-01\nentries = [{policy = "prism"}]', 'name=datetime.date.*expected a text')):
        (tmp_path / 'a.toml').write_text(line)
        with pytest.raises(ValueError, match=expected): ex.cells(ex.read_sweep(tmp_path / 'a.toml'))

@given(st.sampled_from(sorted(ex.Sweep.__dataclass_fields__)), st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=1), st.dates()))
def test_any_setting_of_any_kind(setting, v):
    "Every value is taken, or refused in a sentence that names its setting"
    try: ex.cells(ex.read_sweep(dict(budgets=[4], entries=[dict(policy='prism')]) | {setting: v}))
    except (ValueError, KeyError) as e:
        assert setting.removesuffix('s') in str(e) and len(str(e)) > 20, (setting, v, e)

def test_broken_toml(tmp_path):
    (tmp_path / 'a.toml').write_text('n = [')
    with pytest.raises(ValueError, match='a.toml'): ex.read_sweep(tmp_path / 'a.toml')
    (tmp_path / 'b.toml').write_bytes('n = 1 # caf\xe9'.encode('latin-1'))
    with pytest.raises(ValueError, match='not UTF-8 at byte'): ex.read_sweep(tmp_path / 'b.toml')

some = lambda values, **kw: st.lists(values, unique=True, **kw)
entries = st.fixed_dictionaries(dict(policy=st.sampled_from(['prism', 'navira-det', 'backbone', 'mdlm'])),
                                optional=dict(p=st.sampled_from([.5, 1]), budgets=some(st.integers(2, 40), min_size=1, max_size=3), n=st.integers(1, 30), seeds=some(st.integers(0, 5), min_size=1, max_size=2),
                                              label=st.sampled_from(['a', 'b']), trace=st.booleans(), vary=st.fixed_dictionaries(dict(p=some(st.sampled_from([.25, .75, .875]), min_size=1)))))

@given(some(st.integers(2, 64), min_size=1, max_size=4), some(st.integers(0, 9), min_size=1, max_size=2), st.lists(entries, min_size=1, max_size=4), st.integers(1, 40), st.integers(1, 9))
def test_expansion(budgets, seeds, entries, n, size):
    "Cells are the product of what an entry says, each with a key of its own; the order of entries, labels and sizes change no key; batches are all of a cell, once"
    try: s = ex.read_sweep(dict(budgets=budgets, seeds=seeds, n=n, batch_size=size, entries=entries)); plan = ex.cells(s)
    except ValueError as e: assert 'are the same cell' in str(e); return
    of = lambda e: len(e.get('budgets', budgets)) * len(e.get('seeds', seeds)) * len(e.get('vary', dict(p=[0]))['p'])
    assert len(plan) == sum(map(of, entries)) and [c.budget for c in plan] == sorted(c.budget for c in plan)
    keys = {ex.cell_key(c, 'm', 8) for c in plan}
    assert len(keys) == len(plan)
    other = ex.cells(ex.read_sweep(dict(budgets=budgets[::-1], seeds=seeds, n=n + 1, batch_size=size + 1, entries=[e | dict(label='z') for e in entries[::-1]])))
    assert {ex.cell_key(c, 'm', 8) for c in other} == keys and not {ex.cell_key(c, 'm', 9) for c in other} & keys
    wider = ex.cells(ex.read_sweep(dict(budgets=budgets + [99], seeds=seeds, n=n, entries=entries)))
    assert {ex.cell_key(c, 'm', 8) for c in wider} >= keys
    again = ex.Sweep(**json.loads(json.dumps(ex.asdict(s))))
    assert ex.cells(again) == plan
    for c in plan:
        rows = [i for b in ex.batches(c, 'k', size) for i in range(b.first, b.first + b.n)]
        assert rows == list(range(c.n)) and all(b.first % size == 0 and b.n <= size for b in ex.batches(c, 'k', size))

@given(st.integers(0, 60), st.integers(1, 60), st.integers(1, 9))
def test_what_a_file_holds(there, n, size):
    "A batch counts as done exactly if a file of `there` samples has it in the same shape, or has all that is wanted"
    for b in ex.batches(ex.Cell('prism', 8, n=n), 'k', size):
        in_file = {(f.first, f.n) for f in ex.batches(ex.Cell('prism', 8, n=there), 'k', size)} if there else set()
        assert ex.holds(there, b, size) == (there >= n or (b.first, b.n) in in_file and b.n == size)

@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.randoms(use_true_random=False))
def test_positions_there_and_back(T, n, L, rnd):
    where = torch.tensor([[[rnd.random() < .3 for _ in range(L)] for _ in range(n)] for _ in range(T)])
    lists = ex.by_step(where).to_pylist()
    assert lists == [[where[t, b].nonzero().flatten().tolist() for t in range(T)] for b in range(n)]

@pytest.mark.parametrize('name', ['small', 'curves', 'ablations', 'one-gpu', 'paper'])
def test_configurations_that_ship(name):
    s = ex.read_sweep(name)
    cost = ex.estimate(s)
    assert s.length and (cost.forwards > 0).all() and (cost.bytes > 0).all() and len({ex.cell_key(c) for c in ex.cells(s)}) == cost.cells.sum()
    if name == 'small':
        at = {}
        for c in ex.cells(s): at.setdefault(c.label, {})[c.budget] = c.n
        full = [l for l, ns in at.items() if set(ns) == {16, 32, 64, 128, 256} and all(n >= 100 for F, n in ns.items() if F < 256)]
        assert s.budgets == (16, 32, 64, 128, 256) and s.n == 100 and len(full) >= 15
        assert set(policies()) - {e.policy for e in s.entries} <= {'second-thoughts'}
        assert cost.bytes.sum() < 20e6

def test_small_curves_and_ablations_can_share_a_store():
    three = [ex.read_sweep(n) for n in ('small', 'curves', 'ablations')]
    assert len({(s.model, s.length, s.prompt, s.dtype, s.device, s.batch_size) for s in three}) == 1
    small, curves, _ = [{ex.cell_key(c): c.label for c in ex.cells(s)} for s in three]
    assert len(small.keys() & curves.keys()) >= 6 and all(small[k] == curves[k] for k in small.keys() & curves.keys())


# --- what it costs ------------------------------------------------------------------------------------------------------------------

def test_dry_run_says_what_would_be_refused(home, tmp_path, capsys):
    with pytest.raises(SystemExit): main(['sweep', str(home.config), '--store', str(home.store.folder), '--set', 'batch_size=5', '--dry-run'])
    said = capsys.readouterr()
    assert 'would be refused: batch_size: 4 there, 5 now' in said.err and not said.out.split('\n')[-2].startswith('0 cells')

def test_dry_run(home, tmp_path, capsys):
    main_ = lambda *a: pytest.raises(SystemExit, main, ['sweep', *map(str, a)])
    assert main_(home.config, '--store', tmp_path / 'store', '--dry-run').value.code == 0
    said = capsys.readouterr().out
    forwards = 10 * 12 + 2 * 10 * 12 + 10 * 12
    assert f'{forwards:,} forward passes' in said and 'here' in said and '8 cells' in said and not (tmp_path / 'store').exists(), said
    assert main_('one-gpu', '--dry-run').value.code == 0
    said = capsys.readouterr()
    assert torch.cuda.is_available() or 'no CUDA device here' in said.err and '?' in said.out
    (tmp_path / 'away.toml').write_text(toml(CONFIG | dict(model='no/such/model', length=12)))
    assert main_(tmp_path / 'away.toml', '--dry-run').value.code == 0
    said = capsys.readouterr()
    assert f'{forwards:,} forward passes' in said.out and '?' in said.out and 'hours are unknown' in said.err

def test_bench_times_a_checkpoint_and_estimates_a_sweep(home, capsys, monkeypatch):
    monkeypatch.setattr(out, 'width', 200)
    _bench(str(home.folder / 'model'), str(home.config), limit=0.)
    said = capsys.readouterr().out
    assert 'texts an hour' in said and 'what `navira sweep` would do' in said and all(p in said for p in (('prism', 'navira-piecewise') if home.model.quality else ('backbone', 'remdm-cap')))

def test_dry_run_counts_judging_and_what_is_missing(home, tmp_path, judge, monkeypatch, capsys):
    "Judging has its time; of a store that is there, only the rest counts"
    from navira.cli import clock
    assert [clock(h) for h in (.5 / 3600, .1, 1, 1.0833, float('nan'))] == ['0.0 min', '6.0 min', '1 h 00 min', '1 h 05 min', '?']
    monkeypatch.setattr(metrics, 'load_reference', lambda *a, **kw: judge)
    s = ex.replace(home.sweep, metrics=('entropy', 'perplexity'), features=8, scored=4)
    assert ex.estimate(s).scored.tolist() == [4 * 2 + 10, 2 * (4 * 2 + 10), 4 * 2 + 10] and 0 < ex.judging(s, home.model) < 5     # features of all, at 8 forwards
    st = ex.run(ex.replace(s, n=6, entries=s.entries[:1]), tmp_path / 's', home.model)
    left = ex.estimate(s, home.model, st=st)
    assert left.samples.tolist() == [12, 40, 20] and left.cells.tolist() == [2, 4, 2]        # of 6 in batches of 4, 4 stay
    ex.evaluate(st, ['perplexity'], 'smollm2')
    assert ex.estimate(s, home.model, st=st).scored.tolist() == [10, 36, 18]
    (tmp_path / 'a.toml').write_text(toml(CONFIG | dict(model=str(home.folder / 'model'), metrics=['perplexity'])))
    assert pytest.raises(SystemExit, main, ['sweep', str(tmp_path / 'a.toml'), '--store', str(tmp_path / 's'), '--dry-run']).value.code == 0
    said = ' '.join(capsys.readouterr().out.split())
    assert '72 texts' in said and 'beside what is there' in said and 'texts to judge, ' in said and ' here.' in said, said

def test_what_was_timed_is_kept(home, cache, monkeypatch):
    "One policy of a kind, once; again where the file is damaged, for another model, or when asked to"
    timed, pace = [], ex.pace
    monkeypatch.setattr(ex, 'pace', lambda model, c, s: timed.append(c.policy) or pace(model, c, s))
    seen = list[tuple]()
    first = ex.estimate(home.sweep, home.model, lambda *a: seen.append(a))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    kinds = {ex.kind(c) for c in ex.cells(home.sweep)}
    assert len(timed) == len(kinds) == len(list(cache.iterdir())) == 3
    again = ex.estimate(home.sweep, home.model)
    assert len(timed) == 3 and again.hours.tolist() == first.hours.tolist()
    files = sorted(cache.iterdir())
    for i, bad in enumerate((b'', b'[]', b'{"seconds": [1.0, 2.0]}', b'\xff', b'[' * 100000, files[1].read_bytes(), json.dumps(json.loads(files[0].read_text()) | dict(seconds=[float('nan'), 1.])).encode(), json.dumps(json.loads(files[0].read_text()) | dict(seconds='fast')).encode())):
        files[0].write_bytes(bad)
        assert (ex.estimate(home.sweep, home.model).hours > 0).all() and len(timed) == 4 + i
    ex.estimate(home.sweep, small_lm(seed=4)); assert len(timed) == 4 + i + 3
    ex.estimate(ex.replace(home.sweep, batch_size=3), home.model); assert len(timed) == 4 + i + 6
    ex.estimate(home.sweep, home.model, fresh=True); assert len(timed) == 4 + i + 9
    assert not [p for p in cache.iterdir() if p.name.startswith('.')]

def test_a_cache_that_cannot_be_written_is_none(home, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    monkeypatch.setattr(ex, 'cache_folder', lambda: tmp_path / 'file' / 'navira')
    assert (ex.estimate(home.sweep, home.model).hours > 0).all()

def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.undo()                                       # of the fixture too
    with pytest.MonkeyPatch.context() as m:
        m.setenv('XDG_CACHE_HOME', str(tmp_path)); assert ex.cache_folder() == tmp_path / 'navira'
        m.setenv('HOME', str(tmp_path / 'me'))
        for unset in ('', 'relative/one'): m.setenv('XDG_CACHE_HOME', unset); assert ex.cache_folder() == metrics.cache_folder() == tmp_path / 'me' / '.cache' / 'navira'

def test_a_policy_without_a_budget_is_timed_by_one_that_keeps_to_it(home, monkeypatch):
    "Else a dry run of `small` samples whole texts of `first-hitting`, `eb` and others, three times each"
    timed, pace = [], ex.pace
    monkeypatch.setattr(ex, 'pace', lambda model, c, s: timed.append(c.policy) or pace(model, c, s))
    s = ex.replace(home.sweep, entries=tuple(map(ex.Entry, ('first-hitting', 'eb', 'backbone', 'dream-entropy', 'mdlm'))), budgets=(4,))
    assert (ex.estimate(s, home.model).hours > 0).all() and timed == ['mdlm', 'dream-entropy']
    timed.clear()
    assert (ex.estimate(ex.replace(s, entries=(ex.Entry('prism'), ex.Entry('eb'))), home.model, fresh=True).hours > 0).all() and set(timed) == {'prism', 'eb'}
    assert len({ex.kind(c) for c in ex.cells(ex.read_sweep('small'))}) <= 10       # about a second each on two cores

def test_a_dry_run_into_a_pipe_is_not_silent(home, tmp_path):
    (tmp_path / 'a.toml').write_text(toml(CONFIG | dict(model=str(home.folder / 'model'), metrics=['perplexity'])))
    p = cli('sweep', tmp_path / 'a.toml', '--store', tmp_path / 's', '--dry-run', env=dict(XDG_CACHE_HOME=str(tmp_path)))
    said = p.communicate(timeout=300)[0]
    assert p.returncode == 0 and 'timing 0 of 3' in said and 'timing 2 of 3' in said and 'timing the reference model' in said, said
    assert len(list((tmp_path / 'navira').iterdir())) >= 3

def test_estimate_is_an_upper_bound_of_bytes_and_right_about_forwards(home):
    cost = ex.estimate(home.sweep, home.model)
    assert sum(p.stat().st_size for p in home.store.folder.glob('cells/*')) <= cost.bytes.sum()
    df = ex.load(home.store)
    assert (df.n_forward <= df.charged).all() and (df.charged * df.n).sum() == cost.forwards.sum() and (cost.hours > 0).all()


# --- what decides tokens -------------------------------------------------------------------------------------------------------------

class Reviewer:
    "A critic for `token-critic` that needs no weights: the joint itself"
    def __init__(self, joint): self.joint, self.mask_id, self.length = joint, joint.mask_id, joint.length
    def __call__(self, x): return self.joint(x)

ACTING = {'fast-dllm': dict(threshold=.4), 'remedi': dict(temperature=1.)}      # settings without which a rule is another one on so short a text

def golden(name):
    "Digest of what a policy writes on an exact model in float64: 16 texts of 5 tokens, 18 forwards, and as much taken back as it can"
    joint, dials = random_joint(5, 3, seed=5), inspect.signature(policies()[name]).parameters
    hyper = dict(critic=Reviewer(joint)) if name == 'token-critic' else {k: v for k, v in dict(eta=.05 if name == 'remdm-loop' else .4, on=0., rate=.6, p=1., **ACTING.get(name, {})).items() if k in dials}
    res = sample(joint, policy(name, **hyper), 18, 16, seed=1, batch_size=16)
    return ex.digest([res.tokens.tolist(), res.n_forward.tolist()])

GOLDEN = {
    'backbone': 'ce677b6de469',
    'prism': 'e2033244877c',
    'prism-stochastic': 'e934075dac7e',
    'navira-det': '9e3579295d87',
    'navira': '469c32fd523e',
    'navira-quadratic': '15360224c545',
    'navira-sigmoid': 'e65228e2b3a4',
    'navira-piecewise': '9e56d09076ef',
    'mdlm': '0e9c52778e78',
    'remdm-cap': '43ce9f6c6b4b',
    'remdm-rescale': '21172bc4afa5',
    'remdm-switch': 'a6502c5ede27',
    'remdm-loop': 'fe4c9366ae0d',
    'forward-backward': '861b7cec38ad',
    'dfm': 'b7e418ea896e',
    'remdm-conf': 'bf309372fea6',
    'first-hitting': '939106db449e',
    'llada-random': 'b13b4d83e046',
    'llada-low-confidence': '919305217093',
    'dream-origin': '66b44403010e',
    'dream-maskgit-plus': 'b88fa51bc2a8',
    'dream-topk-margin': '3d09bd92f5ea',
    'dream-entropy': '70bfba149a77',
    'maskgit': 'f261369e6482',
    'fast-dllm': 'bcde04f2a749',
    'eb': '80f77fbb4b52',
    'dus': '4d2b67dfe7ab',
    'p2': '0539e8b518db',
    'remedi': 'f66dfa60ee69',
    'entropy-remask': 'f400654965dc',
    'margin-remask': 'ad4caaba0c3c',
    'mask-predict': 'c175719aead4',
    'prism-loop': '27c0531bdf29',
    'informed-corrector': 'bd10549b9970',
    'token-critic': '63e91b539218',
    'navira-onepass': 'a860b39145d4',
    'navira-onepass-quadratic': '082f573199d6',
    'navira-onepass-sigmoid': '8db213e5748d',
    'navira-onepass-piecewise': 'd39e01bb0a67',
    'navira-onepass-suspects': '190b9d8c74ca',
}

def test_rules_version():
    "What any policy writes has changed, or a policy is new: put the digests in that this prints, and if one of those that were here has changed, raise RULES in notebook 12, or old stores pass for new ones"
    now = {name: golden(name) for name in policies() if name != 'second-thoughts'}      # a test registers that one
    assert len(set(now.values())) == len(now), 'two policies write the same: settings under which they differ go into ACTING'
    changed = {k for k in GOLDEN if now.get(k) != GOLDEN[k]}
    assert now == GOLDEN and ex.RULES == 1, (f'tokens of {sorted(changed)} changed: raise RULES, and' if changed else 'new policies:') + f' GOLDEN = {now}'

def test_a_critic_is_in_the_key(tmp_path):
    "Trained anew in the same folder, it is another cell; moved or read again, it is not"
    import navira.baselines as b
    model = small_lm(seed=3)
    critic = b.critic_of(model, n_blocks=1); b.save_critic(critic, tmp_path / 'c')
    cell = ex.Cell('token-critic', 8, dict(critic=str(tmp_path / 'c')))
    key = ex.cell_key(cell, 'm', 12)
    assert key == ex.cell_key(cell, 'm', 12) and ex.beside(ex.Cell('prism', 8)) == ''
    with torch.no_grad(): next(iter(critic.parameters())).add_(1.)
    b.save_critic(critic, tmp_path / 'c')
    assert ex.cell_key(cell, 'm', 12) != key

def test_rules_and_large_seeds_are_in_the_key(monkeypatch):
    cell = ex.Cell('prism', 8)
    keys = {ex.cell_key(ex.replace(cell, seed=s)) for s in (0, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, 2**63 - 2)}
    monkeypatch.setattr(ex, 'RULES', ex.RULES + 1)
    assert len(keys | {ex.cell_key(cell)}) == 7
    assert ex.plain([1, 1., True, 2**53 + 1, float('inf')]) == [1., 1., True, 2**53 + 1, float('inf')] and isinstance(ex.plain(3), float)

def test_store_of_older_rules_is_refused(home, monkeypatch):
    monkeypatch.setattr(ex, 'RULES', ex.RULES + 1)
    with pytest.raises(ValueError, match='rules: 1 there, 2 now'): ex.run(home.sweep, home.store.folder, home.model)


# --- several sweeps in one store -----------------------------------------------------------------------------------------------------

def test_a_second_sweep_forgets_nothing(home, tmp_path, monkeypatch):
    "small, then curves, then one evaluate: metrics, features and scored samples of both"
    first = ex.replace(home.sweep, name='first', entries=home.sweep.entries[:1], metrics=('entropy', 'perplexity'), features=8, scored=6)
    second = ex.replace(home.sweep, name='second', entries=home.sweep.entries[2:], metrics=('repetition', 'perplexity'), scored=4)
    ex.run(first, tmp_path / 's', home.model)
    config = ex.run(second, tmp_path / 's', home.model).record['config']
    assert (config['name'], ex.wanted(config), config['features'], config['scored']) == ('first', ['entropy', 'perplexity', 'repetition', 'features', 'mauve'], 8, 6)
    assert [e['policy'] for e in config['entries']] == ['prism', 'backbone']
    with pytest.warns(UserWarning, match="reference='other', the store has 'smollm2'"): ex.run(ex.replace(second, reference='other'), tmp_path / 's', home.model)
    asked = ex.run(ex.replace(first, scored=2), tmp_path / 's', home.model).record          # a sweep may change its own mind
    assert asked['config']['scored'] == 4 and list(asked['sweeps']) == ['first', 'second']
    ex.evaluate(tmp_path / 's', ['entropy', 'repetition'])
    assert ex.load(tmp_path / 's')[['entropy', 'repetition']].notna().all(axis=None)

def test_each_cell_as_its_own_sweeps_want(home, judge, tmp_path):
    "One sweep has four texts judged and features at 8, the other all and no features: neither gets the other's"
    first = ex.replace(home.sweep, name='first', entries=home.sweep.entries[:1], metrics=('perplexity',), features=8, scored=4)
    second = ex.replace(home.sweep, name='second', entries=home.sweep.entries[2:], metrics=('perplexity', 'repetition'))
    mine = ex.run(first, tmp_path / 's', home.model).keys
    store = ex.run(second, tmp_path / 's', home.model)
    with pytest.warns(UserWarning, match='mauve, not measured everywhere'): ex.evaluate(store, reference=judge)
    rows = {k: len(ex.sound(store.metric(k, 'perplexity', judge.name))) for k in store.keys}
    assert set(mine) < set(store.keys) and all(n == (4 if k in mine else 10) for k, n in rows.items())
    assert all(store.metric(k, 'repetition').exists() == (k not in mine) for k in store.keys)
    assert {f.name.split('-')[0] for f in store.folder.glob('metrics/*-features-*')} == {k for k in mine if ex.checked(store.cell(k))[1]['budget'] == 8}
    ex.run(ex.replace(second, name='third', entries=first.entries), tmp_path / 's', home.model)       # asks for the first's cells too, and for all of their texts
    with pytest.warns(UserWarning): ex.evaluate(tmp_path / 's', reference=judge)
    assert all(len(ex.sound(store.metric(k, 'perplexity', judge.name))) == 10 for k in store.keys)

def test_parts_of_another_sweep_do_not_count(home, tmp_path):
    "Interrupted, its record deleted, and begun again with other rounding: nothing of the old goes into the new"
    def stop(cell, done, total): signal.raise_signal(signal.SIGINT)
    def once(cell, done, total, calls=[]): calls.append(1) or len(calls) == 6 and stop(cell, done, total)
    with pytest.raises(ex.Interrupted): ex.run(ex.replace(home.sweep, dtype='bfloat16'), tmp_path / 'store', home.model, once)
    assert len(list((tmp_path / 'store').glob('parts/*/*.parquet'))) == 2
    (tmp_path / 'store' / 'sweep.json').unlink()
    with pytest.warns(UserWarning, match="dtype: 'float32' here, 'bfloat16' there"): store = ex.run(home.sweep, tmp_path / 'store', home.model)
    assert same(store, home.store)

def test_a_trace_stays_when_its_cell_grows(home, tmp_path):
    entry = home.sweep.entries[0]
    ex.run(ex.replace(home.sweep, entries=(entry,), n=6), tmp_path / 's', home.model)
    store = ex.run(ex.replace(home.sweep, entries=(ex.replace(entry, trace=False),)), tmp_path / 's', home.model)
    assert [ex.trajectory(store, k)[0].shape[1] for k in store.keys] == [10, 10]
    gone, new = ex.trajectory(store, store.keys[0])
    life = metrics.lifetime(gone, new)                     # of a store, without sampling anew
    assert life.n == 10 and len(life.steps) == new.sum() and life.ended.sum() == gone.sum() > 0


# --- measured ------------------------------------------------------------------------------------------------------------------------

@pytest.fixture
def measured(home, tmp_path):
    "A store of one's own"
    return ex.run(ex.replace(home.sweep, entries=home.sweep.entries[:1]), tmp_path / 'store', home.model)

def counted(monkeypatch, name='entropy'):
    rows, f = [], ex.measures[name]
    monkeypatch.setitem(ex.measures, name, lambda w: rows.append(len(w.tokens)) or f(w))
    return rows

def test_only_what_is_missing(measured, home, monkeypatch):
    rows = counted(monkeypatch)
    ex.evaluate(measured); ex.evaluate(measured)
    assert rows == [10, 10]
    ex.run(ex.replace(home.sweep, entries=home.sweep.entries[:1], n=13), measured.folder, home.model)
    ex.evaluate(measured)
    assert rows[2:] == [3, 3]                              # the last batch of two was computed anew in a batch of four, to the same tokens
    path = measured.metric(measured.keys[0], 'entropy')
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match='set aside'): ex.evaluate(measured)
    assert rows[4:] == [13]
    for k in measured.keys: assert ex.sound(measured.metric(k, 'entropy'))['entropy'].to_pylist() == pytest.approx(metrics.entropy(ex.tokens(measured, k)).tolist())

def test_a_metric_of_other_tokens_does_not_count(measured, monkeypatch):
    "A cell that holds other texts than the metric has judged: those rows are NaN until they are measured"
    ex.evaluate(measured)
    key = measured.keys[0]
    table, about = ex.checked(measured.cell(key))
    rows = table['tokens'].to_pylist(); rows[3] = [9] * 12
    table = table.set_column(1, 'tokens', ex.pa.array(rows, table.schema.field('tokens').type)).set_column(2, 'crc', ex.pa.array(ex.checksums(rows)))
    ex.write_table(measured.cell(key), table, about)
    assert ex.samples(measured, [key]).entropy.isna().tolist() == [i == 3 for i in range(10)]
    rows = counted(monkeypatch)
    ex.evaluate(measured)
    assert rows == [1] and ex.samples(measured, [key]).entropy[3] == 0

def test_evaluate_interrupted(measured, monkeypatch):
    f = ex.measures['entropy']
    monkeypatch.setitem(ex.measures, 'entropy', lambda w: signal.raise_signal(signal.SIGINT) or f(w))
    with pytest.raises(ex.Interrupted, match='stopped after 1 of 2.*same command again'): ex.evaluate(measured)
    monkeypatch.undo()
    rows = counted(monkeypatch)
    ex.evaluate(measured)
    assert rows == [10]

def test_evaluate_and_sweep_keep_out_of_each_others_way(measured, home):
    "What is missing is measured under the lock; a store that lacks nothing is read without it"
    with ex.alone(measured.folder), pytest.raises(ValueError, match='another sweep or evaluate is writing'): ex.evaluate(measured)
    seen = []
    def meanwhile(what, done, total):
        if not done: return
        with pytest.raises(ValueError, match='another sweep or evaluate') as e: ex.run(ex.replace(home.sweep, entries=home.sweep.entries[:1]), measured.folder, home.model)
        seen.append(e)
    ex.evaluate(measured, progress=lambda what, done, total: what and meanwhile(what, done, total))
    assert seen
    with ex.alone(measured.folder): ex.evaluate(measured)
    (measured.folder / 'report').mkdir(); (measured.folder / 'report' / '.a.md.tmp').write_text('')
    ex.run(ex.replace(home.sweep, entries=home.sweep.entries[:1]), measured.folder, home.model)
    assert (measured.folder / 'report' / '.a.md.tmp').exists()      # a report in the making is not a sweep's to tidy

@pytest.fixture(scope='module')
def judge():
    "A causal model of random numbers that knows the words and a separator"
    from tokenizers import processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    torch.manual_seed(0)
    tok = PreTrainedTokenizerFast(tokenizer_object=words(), eos_token='<|endoftext|>')
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)).eval()
    return metrics.Reference(model, tok, '<|endoftext|>', 'random')

def test_perplexity_under_both_rules(judge):
    "Judged once, the same numbers as judging twice"
    tok = words(); tok.add_special_tokens(['<|endoftext|>'])
    end = tok.token_to_id('<|endoftext|>')
    rows = torch.randint(0, 10, (6, 9), generator=torch.Generator().manual_seed(1))
    rows[1, 4] = rows[2, 2] = rows[2, 6] = rows[3, 0] = rows[4, 0] = rows[4, 5] = end
    w = ex.Texts(rows, tok, judge)
    got = ex.likelihoods(w)
    for name in metrics.eos_rules:
        want = metrics.perplexity(w.texts, judge, eos=name)
        assert got[f'nll_{name}'].tolist() == pytest.approx(want.nll.tolist(), rel=1e-5) and got[f'weight_{name}'].tolist() == want.weight.tolist()

def test_perplexity_in_the_store(measured, judge, monkeypatch):
    "Scored samples can be more later; two references stand side by side; the interval is there"
    rows = counted(monkeypatch, 'perplexity')
    ex.evaluate(measured, ['perplexity'], judge, scored=4); ex.evaluate(measured, ['perplexity'], judge, scored=7)
    assert rows == [8, 6]                                  # both cells at once
    df = ex.load(measured)
    assert df.scored.tolist() == [7, 7] and df.perplexity_lo.isna().all()        # none below eight texts
    texts = ex.texts(measured, df.key[0])[:7]
    assert df.perplexity[0] == pytest.approx(metrics.perplexity(texts, judge).value, rel=1e-5)
    other = metrics.Reference(judge.model, judge.tokenizer, judge.eos, 'another')
    ex.evaluate(measured, ['perplexity'], other, scored=3)
    assert ex.load(measured, reference='another').scored.tolist() == [3, 3] and ex.load(measured, reference='random').scored.tolist() == [7, 7]
    with pytest.raises(KeyError, match="did you mean 'another'"): ex.load(measured, reference='anothr')

def test_sets(measured):
    ex.evaluate(measured, ['sets', 'repetition'])
    df = ex.load(measured)
    for name in metrics.of_sets: assert (df[f'{name}_lo'] <= df[name]).all() and (df[name] <= df[f'{name}_hi']).all()
    assert df.repetition.between(0, 1).all()
    before = measured.metric(df.key[0], 'sets').stat().st_mtime_ns
    ex.evaluate(measured, ['sets'])
    assert measured.metric(df.key[0], 'sets').stat().st_mtime_ns == before

def test_features_at_one_budget(measured, judge):
    config = measured.record['config'] | dict(features=8)
    (measured.folder / 'sweep.json').write_text(json.dumps({k: v for k, v in measured.record.items() if k != 'asked'} | dict(config=config)))
    store = ex.open_store(measured.folder)
    ex.evaluate(store, ['features'], judge)
    files = list(store.folder.glob('metrics/*features*'))
    assert len(files) == 1
    key = files[0].name.split('-')[0]
    want = metrics.features(judge, ex.texts(store, key))
    assert torch.allclose(ex.features_of(store, key, judge.name), want, atol=2e-3 * want.abs().max().item())
    with pytest.raises(FileNotFoundError, match='no features'): ex.features_of(store, next(k for k in store.keys if k != key), judge.name)

@pytest.fixture(scope='module')
def sixty(home, tmp_path_factory):
    "A cell of sixty texts, to be compared with a corpus"
    folder = tmp_path_factory.mktemp('sixty')
    (folder / 'real.txt').write_text(' '.join(random.Random(0).choices(WORDS, k=2000)))
    s = ex.replace(home.sweep, entries=home.sweep.entries[:1], budgets=(4,), n=60, batch_size=60, features=4, scored=7, real=str(folder / 'real.txt'), metrics=('entropy',))
    return ex.run(s, folder / 's', home.model)

def test_mauve(sixty, judge):
    "Asked for by its budget; of all samples, against as many windows of the corpus; computed once"
    pytest.importorskip('mauve')
    ex.evaluate(sixty, reference=judge)
    key, = sixty.keys
    row = ex.set_rows(sixty, key, 'random')[-1]
    assert (row['metric'], row['groups'], row['n']) == ('mauve', 2, 60)
    ours, real = ex.features_of(sixty, key, 'random'), ex.real_features(sixty, ex.Judge(judge))
    assert real.shape == ours.shape == (60, 16) and row['value'] == pytest.approx(metrics.grouped_mauve(real, ours).value)
    before = {p: p.stat().st_mtime_ns for p in sixty.folder.glob('metrics/*')}
    ex.evaluate(sixty, reference=judge)
    assert {p: p.stat().st_mtime_ns for p in sixty.folder.glob('metrics/*')} == before

def test_no_mauve(home, sixty, judge, measured, monkeypatch, tmp_path):
    "Where only its budget asked for it, what it lacks is said and everything else is measured; asked for by name, it is an error"
    st = ex.run(ex.replace(home.sweep, budgets=(4,), features=4, metrics=('entropy',)), tmp_path / 's', home.model)
    with pytest.warns(UserWarning, match='mauve, not measured everywhere: MAUVE under .random. at L = 12 has no real text'): ex.evaluate(st, reference=judge)
    assert all(st.metric(k, 'entropy').exists() and not st.metric(k, 'mauve', 'random').exists() for k in st.keys)
    with pytest.raises(ValueError, match='name a corpus'): ex.evaluate(st, ['mauve'], judge)
    st = ex.run(ex.replace(home.sweep, budgets=(4,), features=4, real=str(sixty.folder.parent / 'real.txt'), metrics=('entropy',)), st.folder, home.model)
    with pytest.raises(ValueError, match='at least 50 samples'): ex.evaluate(st, ['mauve'], judge)
    find = metrics.find_spec
    monkeypatch.setattr(metrics, 'find_spec', lambda m: None if m == 'mauve' else find(m))
    (sixty.metric(sixty.keys[0], 'mauve', 'random')).unlink(missing_ok=True)
    with pytest.warns(UserWarning, match='mauve-text'): ex.evaluate(sixty, reference=judge)

def test_real_windows(home, tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text(' '.join(WORDS[i % 10] for i in range(240)))
    rows = ex.real_windows(str(path), home.model.tokenizer, 12, 5)
    whole = ex.real_windows(str(path), home.model.tokenizer, 12, 99)
    firsts = [home.model.tokenizer.token_to_id(WORDS[12 * i % 10]) for i in range(20)]
    assert rows.shape == (5, 12) and torch.equal(rows, whole[:5]) and len(whole) == 20          # as many as there are; fewer are the first of more
    assert sorted(whole[:, 0].tolist()) == sorted(firsts) and whole[:, 0].tolist() != firsts    # each once, and not in the order of the text
    with pytest.raises(ValueError, match='at least two windows of 200'): ex.real_windows(str(path), home.model.tokenizer, 200, 5)
    with pytest.raises(FileNotFoundError, match="did you mean .*a.txt"): ex.real_windows(str(tmp_path / 'b.txt'), home.model.tokenizer, 12, 5)

def test_a_large_copy_says_what_is_large(measured, tmp_path):
    with pytest.warns(UserWarning, match='of which cells'): ex.compact(measured, tmp_path / 'small', large=100)
    path = measured.cell(measured.keys[1]); path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ex.Damaged): ex.compact(measured, tmp_path / 'other')
    assert not (tmp_path / 'other').exists()

MEASURED = {'entropy': 'b1262800cd5c', 'repetition': '26b38fc12193', 'perplexity': 'aa01ff9b9d39', 'features': '3da89c32a78e', 'sets': '106f83ad5dc3'}

def test_metric_versions(judge):
    "What metrics say of fixed texts, to four digits: where it changes, METRIC_RULES of that metric goes up, or stores mix old numbers with new ones"
    tok = words(); tok.add_special_tokens(['<|endoftext|>'])
    rows = torch.randint(0, 11, (60, 12), generator=torch.Generator().manual_seed(2))
    w = ex.Texts(rows, tok, judge)
    said = {name: {k: f'{torch.as_tensor(v).double().abs().sum().item():.4g}' for k, v in f(w).items()} for name, f in ex.measures.items()}
    said['sets'] = [[f'{row[k]:.4g}' for k in ('value', 'lo', 'hi')] for row in ex.of_sets(rows).to_pylist()]
    now = {k: ex.digest(v) for k, v in said.items()}
    assert now == MEASURED and {k: v for k, v in ex.METRIC_RULES.items() if v != 1} == dict(sets=2), f'MEASURED = {now}'

@pytest.mark.parametrize('n', [20, 29, 48, 64])
def test_groups_of_texts_are_of_one_size(n):
    "Self-BLEU grows with the size of a group, so texts that do not fill one are left out, and change nothing"
    rows = torch.randint(0, 11, (n, 12), generator=torch.Generator().manual_seed(3))
    full = n // ex.SET * ex.SET
    said, those = ([{k: v for k, v in row.items() if k != 'n'} for row in ex.of_sets(x).to_pylist()] for x in (rows, rows[:full]))
    assert said == those and {row['groups'] for row in said} == {n // ex.SET}

def test_a_metric_of_an_older_version_is_measured_again(measured, monkeypatch):
    ex.evaluate(measured, ['entropy', 'sets'])
    before = {p: p.stat().st_mtime_ns for p in measured.folder.glob('metrics/*')}
    monkeypatch.setitem(ex.METRIC_RULES, 'sets', ex.METRIC_RULES['sets'] + 1)
    assert all(not ex.set_rows(measured, k) for k in measured.keys)
    ex.evaluate(measured, ['entropy', 'sets'])
    assert {p.name.split('-')[1].split('.')[0] for p in measured.folder.glob('metrics/*') if p.stat().st_mtime_ns != before[p]} == {'sets'}
    assert all(ex.set_rows(measured, k) for k in measured.keys)

def test_a_server_has_no_features(measured, judge, monkeypatch):
    "Asked for by a budget, features and MAUVE that a server cannot give are said once, and everything else is measured"
    class Server(metrics.Reader):
        name, eos, tokenizer, limit, nll = 'random', judge.eos, judge.tokenizer, None, judge.nll
    config = measured.record['config'] | dict(features=8, metrics=['entropy', 'perplexity'])
    (measured.folder / 'sweep.json').write_text(json.dumps({k: v for k, v in measured.record.items() if k != 'asked'} | dict(config=config)))
    with pytest.warns(UserWarning, match='features, not measured everywhere: .*no hidden states') as said: ex.evaluate(measured.folder, reference=Server())
    assert len([w for w in said if 'not measured everywhere' in str(w.message)]) == 1 and ex.load(measured).perplexity.notna().all()

@pytest.mark.parametrize('scored', [0, -3, 1.5])
def test_scored_is_a_whole_number(measured, scored):
    with pytest.raises(ValueError, match='scored'): ex.evaluate(measured, ['entropy'], scored=scored)

def test_a_damaged_perplexity_file_stops_nothing(measured, judge):
    ex.evaluate(measured, ['perplexity'], judge)
    path = measured.metric(measured.keys[0], 'perplexity', judge.name)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match='set aside'): df = ex.load(measured, reference='random')
    assert df.perplexity.notna().sum() == len(df) - 1

def test_a_reference_is_loaded_only_if_something_is_missing(measured, judge, monkeypatch):
    ex.evaluate(measured, ['perplexity'], judge)
    monkeypatch.setattr(metrics, 'load_reference', lambda *a, **kw: pytest.fail('loaded'))
    ex.evaluate(measured, ['perplexity'], 'random')

def test_damaged_cell_is_not_measured(measured):
    path = measured.cell(measured.keys[0])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.warns(UserWarning, match=f'{path.name}.*not measured'): ex.evaluate(measured)
    assert measured.metric(measured.keys[1], 'entropy').exists() and not measured.metric(measured.keys[0], 'entropy').exists()

def test_missing_reference_names_the_extra(measured, monkeypatch):
    monkeypatch.setattr(metrics, 'find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r'pip install "\.\[eval\]"'): ex.evaluate(measured, ['perplexity'])
    ex.evaluate(measured, ['entropy'])                     # needs none, loads none

def test_load(home, measured):
    "Means and intervals as computed by hand"
    ex.evaluate(measured)
    df, per = ex.load(measured), ex.samples(measured)
    assert len(per) == 20 and set(df.budget) == {4, 8} and df.settled[0]['eta'] == .2
    for c in df.itertuples():
        h = metrics.entropy(ex.tokens(measured, c.key))
        assert c.entropy == pytest.approx(h.mean().item()) and (c.entropy_lo, c.entropy_hi) == pytest.approx(metrics.bootstrap(h))
        assert c.n_remasked == ex.trajectory(measured, c.key)[0].sum().item() / 10 and c.tokens_a_step == 12 / c.n_steps
    assert ex.load(measured, limit=5).n.tolist() == [5, 5]
    assert ex.texts(measured, df.key[0])[0].split()
    with pytest.raises(ValueError, match='no finished cell'): ex.load(ex.claim(home.folder / 'empty', ex.replace(home.sweep, length=12), {k: home.store.record[k] for k in ex.IDENTITY}))

def test_again(home):
    key = next(k for k in home.store.keys if ex.checked(home.store.cell(k))[1]['trace'])
    gone, new = ex.trajectory(home.store, key)
    for row in (0, 9):
        res, at = ex.again(home.store, key, row, home.model)
        assert torch.equal(res.tokens[at], ex.tokens(home.store, key)[row]) and torch.equal(res.trace.remasked[:, at], gone[:, row]) and torch.equal(res.trace.revealed[:, at], new[:, row])
    with pytest.raises(ValueError, match='made by the model'): ex.again(home.store, key, 0, small_lm(seed=4))
    with pytest.raises(ValueError, match='row=10'): ex.again(home.store, key, 10, home.model)

def test_compact(home, measured, tmp_path):
    "Small, complete in its metrics, honest about what it lacks"
    ex.evaluate(measured)
    store = ex.run(ex.replace(home.sweep, entries=home.sweep.entries[:1], keep=5), measured.folder, home.model)
    copy = ex.compact(store, tmp_path / 'copy')
    ex.pd.testing.assert_frame_equal(ex.load(copy), ex.load(store))
    assert all(torch.equal(ex.tokens(copy, k), ex.tokens(store, k)[:5]) for k in store.keys) and all(torch.equal(a, b) for k in store.keys for a, b in zip(ex.trajectory(copy, k), ex.trajectory(store, k)))
    ex.evaluate(copy)                                      # nothing is missing
    with pytest.raises(ValueError, match='is not empty'): ex.compact(store, tmp_path / 'copy')
    for there in (False, True):                            # a full disk, at several files: nothing is left, and the same command goes on
        for call in (0, 2, 4):
            if there: (tmp_path / 'again').mkdir(exist_ok=True)
            calls, copy_, write = iter(range(10**6)), ex.shutil.copyfile, ex.pq.write_table
            def full(f):
                def g(*a, **kw):
                    f(*a, **kw)
                    if next(calls) >= call: raise OSError(errno.ENOSPC, 'No space left on device')
                return g
            with pytest.MonkeyPatch.context() as m:
                m.setattr(ex.shutil, 'copyfile', full(copy_)); m.setattr(ex.pq, 'write_table', full(write))
                with pytest.raises(OSError, match='[Nn]o space left'): ex.compact(store, tmp_path / 'again')
            assert (tmp_path / 'again').exists() == there and not (there and os.listdir(tmp_path / 'again'))
    ex.pd.testing.assert_frame_equal(ex.load(ex.compact(store, tmp_path / 'again')), ex.load(store))
    slim = ex.compact(store, tmp_path / 'slim', traces=False)
    with pytest.raises(ValueError, match='without a trace'): ex.trajectory(slim, slim.keys[0])

def test_the_whole_thing(home, tmp_path, monkeypatch, capsys):
    "The three commands, as far as they go without a reference, in a folder of their own"
    monkeypatch.chdir(tmp_path); monkeypatch.setattr(ex, 'RUNS', Path('runs'))
    run_ = lambda *a: pytest.raises(SystemExit, main, list(map(str, a))).value.code
    assert run_('evaluate') == 2 and 'no store in runs' in capsys.readouterr().err
    assert run_('sweep', home.config, '--set', 'n=6') == 0 and run_('evaluate', '--compact', 'copy') == 0
    assert Path('runs/grid/sweep.json').exists() and ex.load('copy').n.tolist() == [6] * 8, capsys.readouterr()

def test_compare_is_a_small_sweep(home, tmp_path, monkeypatch, capsys):
    "Asked again, with a policy more and fewer texts: only the new policy is sampled, and only what was asked for is shown"
    done, compute = [], ex.compute
    monkeypatch.setattr(ex, 'compute', lambda b, *a: done.append(b.cell.policy) or compute(b, *a))
    def compare(policies, n):
        args = ['compare', '--model', str(home.folder / 'model'), '--policies', policies, '--budgets', '8,4', '-n', str(n), '--reference', 'none', '--out', str(tmp_path / 'out'), '--batch-size', '4']
        assert pytest.raises(SystemExit, main, args).value.code == 0, capsys.readouterr()
        return json.loads((tmp_path / 'out' / 'compare.json').read_text())['cells']
    first = compare('prism,navira', 6)
    assert [(c['policy'], c['budget'], c['n_steps'], len(c['texts'])) for c in first] == [('prism', 4, 4, 6), ('navira', 4, 2, 6), ('prism', 8, 8, 6), ('navira', 8, 4, 6)] and len(done) == 8
    assert '<html' in (tmp_path / 'out' / 'replay.html').read_text() and 'passes run, 8 charged' in capsys.readouterr().out
    second = compare('backbone,prism,navira', 3)
    assert set(done[8:]) == {'backbone'} and [len(c['texts']) for c in second] == [3] * 6
    assert [c['texts'] for c in second if c['policy'] == 'prism'] == [c['texts'][:3] for c in first if c['policy'] == 'prism']

# --- a policy of one's own ------------------------------------------------------------------------------------------------
def own_policy(source):
    "Register a policy from source, as a notebook does when a cell is run again"
    space = dict(__name__='somebody')
    exec('from dataclasses import replace\nfrom navira.decoupling import navira_det\nfrom navira.prism import distrust, marked\nfrom navira.sampling import register\n' + source, space)

BODY = """
SCALE = {scale}
def scaled(v): return v * SCALE        {comment}
{beside}
class Score:
    needs_quality = True
    weight = {weight}
    def __call__(self, st, p): return {sign}scaled(distrust(st, p)) * self.weight + 0 * st.i
@register('somebodys')
def somebodys(eta: float = .2): return replace(navira_det(eta), remask=(Score(), navira_det(eta).remask[1]))
"""

@pytest.fixture
def somebody():
    import navira.sampling as s
    yield lambda **kw: own_policy(BODY.format(**dict(scale=1., sign='', comment='', weight=1., beside='') | kw))
    s._registry.pop('somebodys', None); s._about.pop('somebodys', None)

def test_a_store_does_not_go_on_with_a_policy_whose_code_has_changed(tmp_path, somebody):
    sweep, model = ex.Sweep((ex.Entry('somebodys'),), budgets=(4,), n=4, metrics=('entropy',)), small_lm(seed=3)
    run = lambda: ex.run(sweep, tmp_path / 'store', model)
    somebody(); st = run(); before = ex.tokens(st, st.keys[0])
    for same in (dict(comment='# in other words'), dict(beside='i, st = 7, None')):      # `st.i` is not the `i` of the notebook
        somebody(**same); assert torch.equal(ex.tokens(run(), st.keys[0]), before)
    for change in (dict(scale=2.), dict(sign='-'), dict(weight=2.)):      # a number beside it, a method of a class, a number in it
        somebody(**change)
        with pytest.raises(ValueError, match="'somebodys' as it was: its code has changed"): run()
    somebody(); run()

def test_a_policy_from_a_file_is_one_wherever_it_is_loaded(tmp_path, somebody):
    "As `--import` loads it: the module's name is not what it is made of; the store reads, measures, copies and reports without it"
    import importlib.util
    from navira.figures import report
    import navira.sampling as s
    sweep, model = ex.Sweep((ex.Entry('somebodys', trace=True), ex.Entry('prism')), budgets=(4,), n=8, metrics=('entropy', 'repetition')), small_lm(seed=3)
    model.tokenizer = words()
    head = 'from dataclasses import replace\nfrom navira.decoupling import navira_det\nfrom navira.prism import distrust, marked\nfrom navira.sampling import register\n'
    (tmp_path / 'mine.py').write_text(head + BODY.format(scale=1., sign='', comment='', weight=1., beside=''))
    (tmp_path / 'changed.py').write_text(head + BODY.format(scale=2., sign='', comment='', weight=1., beside=''))
    def load(name, file):
        spec = importlib.util.spec_from_file_location(name, tmp_path / file); module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
        return ex.made_of('somebodys')
    codes = [load(name, 'mine.py') for name in ('mine', 'navira_import_mine', 'other')]
    somebody()
    assert set(codes) == {ex.made_of('somebodys')} != {load('mine', 'changed.py')} and None not in codes
    load('mine', 'mine.py')
    st_ = ex.run(sweep, tmp_path / 'store', model)
    load('mine', 'changed.py')
    with pytest.raises(ValueError, match="'somebodys' as it was: its code has changed"): ex.run(sweep, tmp_path / 'store', model)
    s._registry.pop('somebodys'); s._about.pop('somebodys', None)
    st_ = ex.evaluate(st_.folder)
    assert set(ex.load(st_).policy) == {'somebodys', 'prism'} and ex.load(st_).entropy.notna().all()
    assert len(ex.load(ex.compact(st_, tmp_path / 'small'))) == 2
    assert 'somebodys' in (report(st_, tmp_path / 'report')[0]).read_text()
    with pytest.raises(KeyError, match="policy 'somebodys'"): ex.run(sweep, tmp_path / 'store', model)

def test_navira_s_own_policies_are_kept_account_of_by_rules():
    import navira.onepass
    ours = [p for p, f in policies().items() if f.__module__.startswith('navira.')]
    assert len(ours) > 30 and {ex.made_of(p) for p in ours} == {None}
    with pytest.raises(KeyError, match="did you mean 'prism'"): ex.made_of('prysm')
