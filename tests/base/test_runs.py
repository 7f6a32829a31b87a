"""Atomic files, one writer a folder, and a bar that shows only where somebody looks."""
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from navira.base.runs import (
    Busy, atomic_folder, atomic_write, folder_lock, remove_leftovers)
from navira.sampling import sample
from toys import Tiny

def names(folder): return sorted(p.name for p in folder.iterdir())

def test_two_writers_of_one_file_do_not_share_a_temporary_one(tmp_path):
    with atomic_write(tmp_path / 'x') as one, atomic_write(tmp_path / 'x') as two:
        one.write_text('one')
        two.write_text('two')
        remove_leftovers(tmp_path)
        assert one != two and one.exists() and two.exists()
    assert (tmp_path / 'x').read_text() == 'one' and names(tmp_path) == ['x']

@pytest.mark.parametrize('error', [
    RuntimeError('no'), KeyboardInterrupt(), RuntimeError('I/O error: (os error 28)')])
@pytest.mark.parametrize('write', [atomic_write, atomic_folder])
def test_after_an_error_the_old_one_is_whole(tmp_path, write, error):
    path = tmp_path / 'in' / 'model'
    with write(path) as temp:
        if temp.is_dir(): (temp / 'old').touch()
    with pytest.raises(OSError if '28' in repr(error) else type(error)), write(path): raise error
    assert names(path.parent) == ['model'] and (path.is_file() or names(path) == ['old'])


@pytest.mark.parametrize('write', [atomic_write, atomic_folder, folder_lock])
def test_a_place_that_cannot_be_written(tmp_path, write):
    (tmp_path / 'file').touch()
    with pytest.raises(ValueError, match='file.*: cannot be written .* expected a folder of yours'):
        with write(tmp_path / 'file' / 'x'): pass


@pytest.mark.parametrize('exists', [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, exists):
    target, link = tmp_path / 'far' / 'target', tmp_path / 'link'
    target.parent.mkdir()
    if exists: target.write_text('old')
    link.symlink_to('far/target')
    with atomic_write(link) as temp: temp.write_text('new')
    assert link.is_symlink() and target.read_text() == 'new'

def test_a_killed_writer_loses_its_lock_and_its_temporary_file_and_nothing_else_goes(tmp_path):
    code = f'''
import time
from importlib.util import find_spec
from navira.base.runs import atomic_write, folder_lock
with folder_lock({str(tmp_path)!r}), atomic_write({str(tmp_path / 'in' / 'x')!r}):
    print('writing', flush=True)
    time.sleep(600)
'''
    cwd = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, cwd=cwd) as child:
        child.stdout.readline()
        with pytest.raises(Busy, match='another sweep is writing'):
            with folder_lock(tmp_path, 'sweep'): pass
        child.kill()
    other = ['.mine.tmp', f'.navira-{os.getppid()}-0123456789abcdef.tmp', '.navira-x-0.tmp']
    for name in other: (tmp_path / name).touch()
    assert len(names(tmp_path / 'in')) == 1
    with folder_lock(tmp_path): assert names(tmp_path / 'in') == []
    assert set(names(tmp_path)) == {'.navira.lock', 'in', *other}

class Slow(Tiny):
    def __call__(self, x):
        time.sleep(.03)
        return super().__call__(x)

class Terminal(io.StringIO):
    def isatty(self): return True

def shown(monkeypatch, stream, **kw):
    "What a run of more than a second writes to the standard error."
    monkeypatch.setattr(sys, 'stderr', stream)
    sample(Slow(40, 4), 'backbone', 20, n=4, batch_size=2, **kw)
    return stream.getvalue()

def test_the_bar_shows_in_a_terminal_or_on_request_and_leaves_a_terminal_clean(monkeypatch):
    terminal = shown(monkeypatch, Terminal())
    assert 'backbone' in terminal and '/80' in terminal
    assert not terminal.rstrip('\r').strip(' ').endswith('s]')
    assert shown(monkeypatch, io.StringIO()) == ''
    assert shown(monkeypatch, Terminal(), progress=False) == ''
    assert '80/80' in shown(monkeypatch, io.StringIO(), progress=True)
    steps = []
    assert shown(monkeypatch, Terminal(),
                 progress=lambda texts: steps.append(len(texts))) == '' and sum(steps) == 80
