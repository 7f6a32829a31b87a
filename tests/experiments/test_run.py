"""The grid of notebook 12 as its users treat it: killed, interrupted, on a full disk, in two processes, with files
damaged, extended, misconfigured."""
import errno, json, os, random, shutil, signal, threading, time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import pyarrow.parquet as pq
from hypothesis import given, strategies as st

import navira.evaluation.references as ex_references
import navira.experiments.cells as ex_cells
import navira.experiments.old_run as ex_run
from navira.evaluation.references import cache_folder
from navira.experiments.cells import Cell, cell_key, code_hash
from navira.experiments.old_sweep import cells, Entry, read_sweep, Sweep
from navira.experiments.old_store import checked
from navira.experiments.old_run import batches, holds, Interrupted, store_lock
from navira.experiments.measure import evaluate_store
from navira.experiments.frames import compact, load_samples
from navira.cli.app import main
from toys import small_lm
from helpers.experiments import (  # noqa: F401
    BODY, CONFIG, HEAD, cache, clean, cli, contents, entries, home, one_thread_each, said, same, some, somebody,
    toml, words)

# --- killed -----------------------------------------------------------------------------------------------------------

def finished(folder):
    """Batches that are in files: a cell is three. `os.walk`, as folders of parts go while we look, and `glob` fails
    when one does."""
    return sum(
        3 if Path(at).name == 'cells' else 1
        for at, _, names in os.walk(folder)
        if Path(at).parent.name == 'parts' or Path(at).name == 'cells'
        for name in names
        if name.endswith('.parquet') and not name.startswith('.')
    )

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
    assert same(ex_run.run(home.sweep, folder), home.store)

DIFFERENT = dict(length=8, batch_size=5, dtype='bfloat16', prompt='we saw')

# --- configurations ---------------------------------------------------------------------------------------------------

MISTAKES = {
    'unknown setting': (dict(budget=[8]), "setting 'budget': did you mean 'budgets'?"),
    'unknown policy': (dict(entries=[dict(policy='prisma')]), "did you mean 'prism'?"),
    'unknown hyper-parameter': (dict(entries=[dict(policy='prism', etha=0.1)]), "did you mean 'eta'?"),
    'hyper-parameter out of range': (dict(entries=[dict(policy='prism', eta=2.0)]), 'eta=2.0'),
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
    'vary unknown': (dict(entries=[dict(policy='prism', vary=dict(tau=[1.0]))]), "setting 'tau'"),
    'the same cell twice': (
        dict(entries=[dict(policy='prism'), dict(policy='prism', label='b', eta=0.01)]),
        'are the same cell',
    ),
    'unknown metric': (dict(metrics=['mauv']), "metric 'mauv'"),
    'seeds that are one in 64 bits': (
        dict(seeds=[0, 2**64]),
        f'seeds={2**64}: expected a whole number of at least {-(2**63)} and at most {2**63 - 1}',
    ),
    'a seed beyond 64 bits in an entry': (
        dict(entries=[dict(policy='prism', seeds=[-(2**63) - 1])]),
        f'prism: seeds={-(2**63) - 1}',
    ),
    'label no text': (dict(entries=[dict(policy='prism', label=3)]), 'label=3: expected a text'),
    'hyper no table': (dict(entries=[dict(policy='prism', hyper=3)]), 'prism: hyper=3: expected a table'),
    'trace no switch': (dict(entries=[dict(policy='prism', trace='yes')]), "trace='yes': expected true or false"),
    'a list for a number': (dict(entries=[dict(policy='prism', eta=[0.1])]), 'prism: eta=[0.1]: expected a number'),
    'a temperature of a wrong kind': (
        dict(entries=[dict(policy='navira', tau=dict(schedule='quadratic', tau_max='x'))]),
        "tau: tau_max='x': expected a number",
    ),
    'a huge hyper-parameter': (dict(entries=[dict(policy='navira', tau=10**400)]), 'tau=1000'),
    'a huge count': (dict(entries=[dict(policy='informed-corrector', k=2**64)]), f'k={2**64}'),
    'a huge top_k': (dict(entries=[dict(policy='dream-origin', top_k=2**64)]), f'top_k={2**64}'),
    'a huge block': (
        dict(entries=[dict(policy='dus', block_length=10**8)]),
        'block_length=100000000: expected a whole number of at least 1 and at most 65536',
    ),
    'a huge skip': (
        dict(entries=[dict(policy='dus', skip=2**62)]),
        f'skip={2**62}: expected a whole number of at least 1 and at most 16',
    ),
    'a huge budget': (
        dict(budgets=[10**9]),
        'budget=1000000000: a one-pass policy needs a whole number of at least 1 and at most 1000000',
    ),
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

def test_kill_9_and_resume(home, tmp_path): killed_and_resumed(home, tmp_path / 'store', 3)

@pytest.mark.slow
@pytest.mark.parametrize('time_of_day', range(4))
def test_kill_9_often(home, tmp_path, time_of_day):
    "20 kills, five for each of four stores"
    killed_and_resumed(home, tmp_path / 'store', 5)

@pytest.mark.parametrize('call', range(0, 33, 4))
def test_dies_at_any_write(home, tmp_path, monkeypatch, call):
    """Death between the bytes and the new name, at every kind of write in turn: a part, a cell, and right after a cell
    was written but before its parts went"""
    class Dead(BaseException): pass
    calls, write = iter(range(10**6)), pq.write_table
    def dying(table, path, **kw):
        write(table, path, **kw)
        if next(calls) == call: raise Dead
    monkeypatch.setattr(pq, 'write_table', dying)
    try: ex_run.run(home.sweep, tmp_path / 'store')
    except Dead: pass
    monkeypatch.undo()
    (tmp_path / 'store' / 'cells').mkdir(exist_ok=True)
    # what a kill leaves, where an exception cleans up
    (tmp_path / 'store' / 'cells' / '.navira-1073741824-0123456789abcdef.tmp').write_bytes(b'PAR1')
    assert same(ex_run.run(home.sweep, tmp_path / 'store'), home.store)

def test_parts_that_a_kill_left_beside_their_cell(home, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, 'rmtree', lambda *a, **kw: None)
    store = ex_run.run(home.sweep, tmp_path / 'store')
    assert list(store.folder.glob('parts/*/*.parquet'))
    monkeypatch.undo()
    assert same(ex_run.run(home.sweep, store.folder), home.store)

def test_only_one_at_a_time(home, tmp_path):
    with store_lock(tmp_path / 'store'), pytest.raises(ValueError, match='another sweep or evaluate is writing'):
        ex_run.run(home.sweep, tmp_path / 'store', home.model)
    assert same(ex_run.run(home.sweep, tmp_path / 'store', home.model), home.store)

# --- interrupted ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_batch(home, tmp_path, sig):
    folder, calls = tmp_path / 'store', []
    def progress(cell, done, total):
        calls.append(done / total)
        if len(calls) == 6: signal.raise_signal(sig)  # in the middle of the second batch: four steps each

    with pytest.raises(Interrupted, match='stopped after 2 of 24 batches.*same command again'):
        ex_run.run(home.sweep, folder, home.model, progress)
    assert len(list(folder.glob('parts/*/*.parquet'))) == 2 and signal.getsignal(sig) != signal.SIG_IGN
    assert same(ex_run.run(home.sweep, folder, home.model), home.store)
    assert calls == sorted(calls) and calls[-1] <= 1

def test_second_ctrl_c_stops_at_once(home, tmp_path):
    def progress(cell, done, total): signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as e: ex_run.run(home.sweep, tmp_path / 'store', home.model, progress)
    assert not isinstance(e.value, Interrupted) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert same(ex_run.run(home.sweep, tmp_path / 'store', home.model), home.store)

def test_ctrl_c_while_threads_share_a_batch(home, tmp_path, two_threads):
    """Rows are counted whichever thread made them; the first Ctrl-C still finishes the batch, a second one stops the
    threads"""
    seen = []
    def progress(cell, done, total):
        seen.append(done / total)
        if len(seen) == 3: signal.raise_signal(signal.SIGINT)  # in the first batch: two threads, four steps each

    with pytest.raises(Interrupted, match='stopped after 1 of 24 batches'):
        ex_run.run(home.sweep, tmp_path / 'store', home.model, progress)
    assert len(seen) == 8 and seen == sorted(seen) and len(set(seen)) == 8
    presses = iter(range(2))
    def press(*a):
        # as from a terminal: what a worker raises waits until the main thread wakes
        if next(presses, None) is not None: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(.05)
    with pytest.raises(KeyboardInterrupt) as e: ex_run.run(home.sweep, tmp_path / 'store', home.model, press)
    assert not isinstance(e.value, Interrupted)
    assert not [t for t in threading.enumerate() if t.name.startswith('ThreadPool')]
    assert len(list((tmp_path / 'store').glob('parts/*/*.parquet'))) == 1

def test_ctrl_c_in_a_process(home, tmp_path):
    p = cli('sweep', home.config, '--store', tmp_path / 'store')
    while p.poll() is None and not finished(tmp_path / 'store'): time.sleep(.002)
    p.send_signal(signal.SIGINT)
    text, _ = p.communicate(timeout=300)
    assert 'finishing the batch at hand' in text
    assert p.returncode == 130 and 'give the same command again to go on' in text and 'Traceback' not in text, text
    assert same(ex_run.run(home.sweep, tmp_path / 'store'), home.store)

# --- a full disk ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('call', [0, 3, 9, 14])
def test_disk_full(home, tmp_path, monkeypatch, call):
    "The write fails after half of its bytes: a clean stop, nothing half-written, and the next run goes on"
    calls, write = iter(range(10**6)), pq.write_table
    def full(table, path, **kw):
        write(table, path, **kw)
        if next(calls) >= call:
            os.truncate(path, os.path.getsize(path) // 2)
            raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(pq, 'write_table', full)
    with pytest.raises(OSError, match='no space left.*same command again') as e:
        ex_run.run(home.sweep, tmp_path / 'store', home.model)
    assert e.value.errno == errno.ENOSPC
    monkeypatch.undo()
    files = list((tmp_path / 'store').rglob('*.parquet'))
    assert not [p for p in (tmp_path / 'store').rglob('*.tmp')]
    # each is whole
    for p in files: checked(p, first=int(p.stem.split('-')[0]) if p.parent.parent.name == 'parts' else 0)
    assert same(ex_run.run(home.sweep, tmp_path / 'store', home.model), home.store)

def test_folder_that_cannot_be_written(home, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(ValueError, match='file'): ex_run.run(home.sweep, tmp_path / 'file', home.model)
    with pytest.raises(ValueError, match='cannot be made'): ex_run.run(home.sweep, tmp_path / 'file' / 'store', home.model)  # noqa: E501

def test_damaged_parts(home, tmp_path):
    folder, calls = tmp_path / 'store', []
    def progress(cell, done, total):
        calls.append(done)
        if len(calls) == 6: signal.raise_signal(signal.SIGINT)      # in the second of three batches
    with pytest.raises(Interrupted): ex_run.run(home.sweep, folder, home.model, progress)
    parts = sorted(folder.glob('parts/*/*.parquet'))
    assert len(parts) == 2
    parts[0].write_bytes(parts[0].read_bytes()[:-9])
    parts[0].with_name('first.parquet').write_bytes(b'')
    with pytest.warns(UserWarning, match='set aside'): assert same(ex_run.run(home.sweep, folder, home.model), home.store)  # noqa: E501

def test_other_files_in_the_folder_stay(home, tmp_path):
    "`sweep --store .`: what a sweep removes carries the mark of a process of ours that is no more"
    store = ex_run.run(home.sweep, tmp_path / 'store', home.model)
    gone, here = (f'.navira-{pid}-{"0123456789abcdef"}.tmp' for pid in (2**30, 1))
    mine = [
        '.mine.tmp',
        'lock',
        'cells/.notes.tmp',
        f'cells/.{store.keys[0]}.parquet.tmp',
        'cells/.tmp',
        f'cells/{here}',
        f'elsewhere/{gone}',
        'cells/notes.txt',
        '.sweep.json.tmp',
    ]
    left = [gone, f'cells/{gone}', f'metrics/{gone}', f'parts/{store.keys[0]}/{gone}']
    for name in mine + left:
        (store.folder / name).parent.mkdir(parents=True, exist_ok=True); (store.folder / name).write_text('mine')
    ex_run.run(home.sweep, store.folder, home.model)
    assert [
        name for name in mine if not (store.folder / name).exists() or (store.folder / name).read_text() != 'mine'
    ] == []
    assert [name for name in left if (store.folder / name).exists()] == []

@pytest.mark.parametrize('what', [*DIFFERENT, 'fingerprint'])
def test_store_of_another_sweep(home, tmp_path, what):
    "Refused, with the difference, and nothing touched"
    before = {p: p.read_bytes() for p in home.store.folder.rglob('*') if p.is_file()}
    model = small_lm(seed=4) if what == 'fingerprint' else home.model
    with pytest.raises(ValueError, match=f'{what}: .* there, .* now'):
        ex_run.run(replace(home.sweep, **{what: DIFFERENT[what]} if what in DIFFERENT else {}), home.store.folder, model)  # noqa: E501
    assert {p: p.read_bytes() for p in home.store.folder.rglob('*') if p.is_file()} == before

# --- extended ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('n', [10, 12, 15, 3])
def test_more_samples(home, tmp_path, n):
    "From 6 to n in batches of 4: what a fresh sweep of n gives; fewer than there are is no work"
    first = ex_run.run(replace(home.sweep, n=6), tmp_path / 'store', home.model)
    written = {p: p.stat().st_mtime_ns for p in first.folder.glob('cells/*')}
    store, fresh = (
        ex_run.run(replace(home.sweep, n=n), first.folder, home.model),
        ex_run.run(replace(home.sweep, n=max(n, 6)), tmp_path / 'fresh', home.model),
    )
    tables = lambda s: {k: v[0] for k, v in contents(s).items()}
    assert tables(store) == tables(fresh) and clean(store)
    if n < 6: assert {p: p.stat().st_mtime_ns for p in store.folder.glob('cells/*')} == written

def test_parts_of_another_shape_do_not_count(home, tmp_path):
    "Interrupted with 6 samples (batches of 4 and 2) and no trace, then asked for 10 with one"
    other = replace(
        home.sweep, n=6, entries=(replace(home.sweep.entries[0], trace=False), *home.sweep.entries[1:])
    )
    def progress(cell, done, total):
        if cell.budget == 4 and len(list((tmp_path / 'store').glob('parts/*/*.parquet'))) == 1:
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): ex_run.run(other, tmp_path / 'store', home.model, progress)
    assert list((tmp_path / 'store').glob('parts/*/*.parquet'))
    assert same(ex_run.run(home.sweep, tmp_path / 'store', home.model), home.store)

@pytest.mark.parametrize('case', MISTAKES)
def test_mistake_in_a_configuration(home, tmp_path, case, capsys):
    "One line that names the value, exit code 2, and no store made"
    change, expected = MISTAKES[case]
    (tmp_path / 'grid.toml').write_text(toml(CONFIG | dict(model=str(home.folder / 'model')) | change))
    with pytest.raises(SystemExit) as e:
        main(['sweep', str(tmp_path / 'grid.toml'), '--store', str(tmp_path / 'store')])
    printed = capsys.readouterr()
    assert e.value.code == 2 and expected in printed.err and len(printed.err.strip().splitlines()) == 1, printed
    assert not (tmp_path / 'store').exists()

@pytest.mark.parametrize(
    'args, expected',
    [
        (['sweep', 'smal'], "did you mean 'small'?"),
        (['sweep', 'no/such.toml'], 'not found'),
        (['evaluate', '{store}x'], 'did you mean'),
        (['evaluate', '{store}', '--metrics', 'entropi'], "did you mean 'entropy'?"),
        (['evaluate', '{store}', '--metrics', 'perplexity', '--reference', 'smolm2'], "did you mean 'smollm2'?"),
        (['evaluate', '{folder}'], 'no sweep.json'),
        (['report', '{store}x'], 'did you mean'),
    ],
)
def test_mistake_in_a_command(home, capsys, args, expected):
    with pytest.raises(SystemExit) as e: main([a.format(store=home.store.folder, folder=home.folder) for a in args])
    printed = capsys.readouterr()
    assert e.value.code == 2 and expected in printed.err and 'Traceback' not in printed.err, printed

@given(
    some(st.integers(2, 64), min_size=1, max_size=4),
    some(st.integers(0, 9), min_size=1, max_size=2),
    st.lists(entries, min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_expansion(budgets, seeds, entries, n, size):
    """Cells are the product of what an entry says, each with a key of its own; the order of entries, labels and sizes
    change no key; batches are all of a cell, once"""
    try:
        s = read_sweep(dict(budgets=budgets, seeds=seeds, n=n, batch_size=size, entries=entries))
        plan = cells(s)
    except ValueError as e:
        assert 'are the same cell' in str(e)
        return
    of = lambda e: len(e.get('budgets', budgets)) * len(e.get('seeds', seeds)) * len(e.get('vary', dict(p=[0]))['p'])
    assert len(plan) == sum(map(of, entries)) and [c.budget for c in plan] == sorted(c.budget for c in plan)
    keys = {cell_key(c, 'm', 8) for c in plan}
    assert len(keys) == len(plan)
    other = cells(
        read_sweep(
            dict(
                budgets=budgets[::-1],
                seeds=seeds,
                n=n + 1,
                batch_size=size + 1,
                entries=[e | dict(label='z') for e in entries[::-1]],
            )
        )
    )
    assert {cell_key(c, 'm', 8) for c in other} == keys and not {cell_key(c, 'm', 9) for c in other} & keys
    wider = cells(read_sweep(dict(budgets=budgets + [99], seeds=seeds, n=n, entries=entries)))
    assert {cell_key(c, 'm', 8) for c in wider} >= keys
    again = Sweep(**json.loads(json.dumps(asdict(s))))
    assert cells(again) == plan
    for c in plan:
        rows = [i for b in batches(c, 'k', size) for i in range(b.first, b.first + b.n)]
        assert rows == list(range(c.n)) and all(b.first % size == 0 and b.n <= size for b in batches(c, 'k', size))

@given(st.integers(0, 60), st.integers(1, 60), st.integers(1, 9))
def test_what_a_file_holds(there, n, size):
    "A batch counts as done exactly if a file of `there` samples has it in the same shape, or has all that is wanted"
    for b in batches(Cell('prism', 8, n=n), 'k', size):
        in_file = {(f.first, f.n) for f in batches(Cell('prism', 8, n=there), 'k', size)} if there else set()
        assert holds(there, b, size) == (there >= n or (b.first, b.n) in in_file and b.n == size)

# --- what it costs ----------------------------------------------------------------------------------------------------

def test_dry_run_says_what_would_be_refused(home, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(['sweep', str(home.config), '--store', str(home.store.folder), '--set', 'batch_size=5', '--dry-run'])
    said = capsys.readouterr()
    assert 'would be refused: batch_size: 4 there, 5 now' in said.err
    assert not said.out.split('\n')[-2].startswith('0 cells')

def test_dry_run(home, tmp_path, capsys):
    main_ = lambda *a: pytest.raises(SystemExit, main, ['sweep', *map(str, a)])
    assert main_(home.config, '--store', tmp_path / 'store', '--dry-run').value.code == 0
    said = capsys.readouterr().out
    forwards = 10 * 12 + 2 * 10 * 12 + 10 * 12
    assert (
        f'{forwards:,} forward passes' in said
        and 'here' in said
        and '8 cells' in said
        and not (tmp_path / 'store').exists()
    ), said
    assert main_('one-gpu', '--dry-run').value.code == 0
    said = capsys.readouterr()
    assert torch.cuda.is_available() or 'no CUDA device here' in said.err and '?' in said.out
    (tmp_path / 'away.toml').write_text(toml(CONFIG | dict(model='no/such/model', length=12)))
    assert main_(tmp_path / 'away.toml', '--dry-run').value.code == 2           # it cannot run here
    said = capsys.readouterr()
    assert f'{forwards:,} forward passes' in said.out and '?' in said.out and 'hours are unknown' in said.err
    assert main_(home.config, '--dry-run', '--set', 'task=sudoko').value.code == 2
    assert "did you mean 'sudoku'?" in capsys.readouterr().err

def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.undo()                                       # of the fixture too
    with pytest.MonkeyPatch.context() as m:
        m.setenv('XDG_CACHE_HOME', str(tmp_path)); assert ex_references.cache_folder() == tmp_path / 'navira'
        m.setenv('HOME', str(tmp_path / 'me'))
        for unset in ('', 'relative/one'):
            m.setenv('XDG_CACHE_HOME', unset)
            assert ex_references.cache_folder() == cache_folder() == tmp_path / 'me' / '.cache' / 'navira'

def test_a_dry_run_into_a_pipe_is_not_silent(home, tmp_path):
    (tmp_path / 'a.toml').write_text(toml(CONFIG | dict(model=str(home.folder / 'model'), metrics=['perplexity'])))
    p = cli(
        'sweep', tmp_path / 'a.toml', '--store', tmp_path / 's', '--dry-run', env=dict(XDG_CACHE_HOME=str(tmp_path))
    )
    said = p.communicate(timeout=300)[0]
    assert (
        p.returncode == 0
        and 'timing 0 of 3' in said
        and 'timing 2 of 3' in said
        and 'timing the reference model' in said
    ), said
    assert len(list((tmp_path / 'navira').iterdir())) >= 3

def test_store_of_older_rules_is_refused(home, monkeypatch):
    newer = ex_cells.RULES + 1
    for room in ('navira.experiments.cells', 'navira.experiments.old_store'): monkeypatch.setattr(f'{room}.RULES', newer)
    with pytest.raises(ValueError, match='rules: 1 there, 2 now'): ex_run.run(home.sweep, home.store.folder, home.model)

def test_parts_of_another_sweep_do_not_count(home, tmp_path):
    "Interrupted, its record deleted, and begun again with other rounding: nothing of the old goes into the new"
    def stop(cell, done, total): signal.raise_signal(signal.SIGINT)
    def once(cell, done, total, calls=[]): calls.append(1) or len(calls) == 6 and stop(cell, done, total)

    with pytest.raises(Interrupted):
        ex_run.run(replace(home.sweep, dtype='bfloat16'), tmp_path / 'store', home.model, once)
    assert len(list((tmp_path / 'store').glob('parts/*/*.parquet'))) == 2
    (tmp_path / 'store' / 'sweep.json').unlink()
    with pytest.warns(UserWarning, match="dtype: 'float32' here, 'bfloat16' there"):
        store = ex_run.run(home.sweep, tmp_path / 'store', home.model)
    assert same(store, home.store)

def test_compare_is_a_small_sweep(home, tmp_path, monkeypatch, capsys):
    """Asked again, with a policy more and fewer texts: only the new policy is sampled, and only what was asked for is
    shown"""
    done, compute = [], ex_run.compute
    monkeypatch.setattr('navira.experiments.old_run.compute', lambda b, *a: done.append(b.cell.policy) or compute(b, *a))
    def compare(policies, n):
        args = [
            'compare',
            '--model',
            str(home.folder / 'model'),
            '--policies',
            policies,
            '--budgets',
            '8,4',
            '-n',
            str(n),
            '--reference',
            'none',
            '--out',
            str(tmp_path / 'out'),
            '--batch-size',
            '4',
        ]
        assert pytest.raises(SystemExit, main, args).value.code == 0, capsys.readouterr()
        return json.loads((tmp_path / 'out' / 'compare.json').read_text())['cells']
    first = compare('prism,navira', 6)
    assert [(c['policy'], c['budget'], c['n_steps'], len(c['texts'])) for c in first] == [
        ('prism', 4, 4, 6),
        ('navira', 4, 2, 6),
        ('prism', 8, 8, 6),
        ('navira', 8, 4, 6),
    ]
    assert len(done) == 8
    assert '<html' in (tmp_path / 'out' / 'replay.html').read_text()
    assert 'passes run, 8 charged' in capsys.readouterr().out
    second = compare('backbone,prism,navira', 3)
    assert set(done[8:]) == {'backbone'} and [len(c['texts']) for c in second] == [3] * 6
    assert [c['texts'] for c in second if c['policy'] == 'prism'] == [
        c['texts'][:3] for c in first if c['policy'] == 'prism'
    ]

def test_a_store_that_knew_byte_code_goes_on_and_says_so(tmp_path, somebody):
    "As 0.1.0 made them: nothing can be held against such a hash, so the next sweep notes the source"
    sweep = Sweep((Entry('somebodys'),), budgets=(4,), n=4, metrics=('entropy',))
    run = lambda: ex_run.run(sweep, tmp_path / 'store', small_lm(seed=3))
    somebody()
    old = run().record | dict(own=dict(somebodys='0123456789ab'))
    (tmp_path / 'store' / 'sweep.json').write_text(json.dumps(old))
    with pytest.warns(UserWarning, match="'somebodys' from an earlier version"): st = run()
    assert st.record['own'] == dict(somebodys=code_hash('somebodys'))
    somebody(scale=2.)
    with pytest.raises(ValueError, match="'somebodys' as it was: its code has changed"): run()

def test_a_policy_from_a_file_is_one_wherever_it_is_loaded(tmp_path, somebody):
    """As `--import` loads it: the module's name is not what it is made of; the store reads, measures, copies and
    reports without it"""
    import importlib.util
    from navira.experiments.report import report
    from navira.registry import _about, _registry

    sweep, model = (
        Sweep(
            (Entry('somebodys', trace=True), Entry('prism')), budgets=(4,), n=8, metrics=('entropy', 'repetition')
        ),
        small_lm(seed=3),
    )
    model.tokenizer = words()
    (tmp_path / 'mine.py').write_text(HEAD + BODY.format(scale=1., sign='', comment='', weight=1., beside=''))
    (tmp_path / 'changed.py').write_text(HEAD + BODY.format(scale=2., sign='', comment='', weight=1., beside=''))
    def load(name, file):
        spec = importlib.util.spec_from_file_location(name, tmp_path / file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return code_hash('somebodys')
    codes = [load(name, 'mine.py') for name in ('mine', 'navira_import_mine', 'other')]
    somebody()
    assert set(codes) == {code_hash('somebodys')} != {load('mine', 'changed.py')} and None not in codes
    load('mine', 'mine.py')
    st_ = ex_run.run(sweep, tmp_path / 'store', model)
    load('mine', 'changed.py')
    with pytest.raises(ValueError, match="'somebodys' as it was: its code has changed"):
        ex_run.run(sweep, tmp_path / 'store', model)
    _registry.pop('somebodys'); _about.pop('somebodys', None)
    st_ = evaluate_store(st_.folder)
    assert set(load_samples(st_).policy) == {'somebodys', 'prism'} and load_samples(st_).entropy.notna().all()
    assert len(load_samples(compact(st_, tmp_path / 'small'))) == 2
    assert 'somebodys' in (report(st_, tmp_path / 'report')[0]).read_text()
    with pytest.raises(KeyError, match="policy 'somebodys'"): ex_run.run(sweep, tmp_path / 'store', model)
