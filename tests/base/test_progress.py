"""A bar for whoever looks: a terminal, a notebook, or nobody."""
import io, sys, threading, time
from types import SimpleNamespace

import pytest

from navira.base.progress import ProgressBar
from navira.sampling import sample
from toys import Tiny

class Slow(Tiny):
    def __call__(self, x):
        time.sleep(.008)
        return super().__call__(x)

class Terminal(io.StringIO):
    def isatty(self): return True

def watched(monkeypatch, stream, **kw):
    monkeypatch.setattr(sys, 'stderr', stream)
    monkeypatch.setattr('navira.sampling.ProgressBar', lambda total, name: ProgressBar(total, name, wait=.05))
    monkeypatch.setenv('TERM', 'xterm')
    out = sample(Slow(40, 4), 'backbone', 20, n=4, batch_size=2, **kw)
    assert (out.tokens < 4).all()
    return stream.getvalue()

def test_a_terminal_gets_a_bar_that_goes(monkeypatch, two_threads):
    shown = watched(monkeypatch, Terminal())
    assert 'backbone' in shown and '/80' in shown and shown.endswith(('\x1b[2K', '\x1b[?25h', '\x1b[1A\x1b[2K'))

def test_nobody_looks_nothing_is_shown(monkeypatch):
    assert watched(monkeypatch, io.StringIO()) == '' and watched(monkeypatch, Terminal(), progress=False) == ''
    told = []
    assert watched(monkeypatch, Terminal(), progress=told.append) == '' and sum(told) == 80
    monkeypatch.setattr(sys, 'stderr', None)
    sample(Tiny(6, 4), 'prism', 4)

def test_a_bar_that_was_asked_for(monkeypatch):
    "is shown at once; where no terminal is, its last state stays, without control codes"
    monkeypatch.setenv('TERM', 'xterm')          # rich draws nothing in a dumb one
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, 'stderr', stream)
        sample(Tiny(6, 4), 'backbone', 4, n=4, progress=True)
        assert 'backbone' in stream.getvalue() and '16/16' in stream.getvalue()
        assert stream.isatty() == ('\x1b' in stream.getvalue())
    with pytest.raises(ValueError, match="progress='yes': expected None, True, False"):
        sample(Tiny(6, 4), 'backbone', 4, progress='yes')

def test_a_short_run_shows_none(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, 'stderr', stream)
    sample(Tiny(6, 4), 'prism', 4, n=4)
    assert stream.getvalue() == ''

def test_a_notebook_keeps_nothing_of_the_bar(monkeypatch):
    ipython = pytest.importorskip('IPython')
    seen = []
    monkeypatch.setattr(ipython, 'get_ipython', lambda: SimpleNamespace(kernel=1))
    monkeypatch.setattr(
        ipython.display,
        'display',
        lambda data, **_: (seen.append(data), SimpleNamespace(update=lambda data, **_: seen.append(data)))[1],
    )
    assert watched(monkeypatch, io.StringIO()) == ''
    texts = [d['text/plain'] for d in seen]
    assert len(texts) > 2 and texts[0] == texts[-1] == '' and any('/80' in t for t in texts)
    assert '\x1b' not in ''.join(texts)

def test_an_error_takes_the_bar_away(monkeypatch):
    class Breaks(Slow):
        def __call__(self, x):
            if len(self.rows) > 20: raise RuntimeError('broken')
            return super().__call__(x)
    stream, before = Terminal(), threading.active_count()
    monkeypatch.setattr(sys, 'stderr', stream); monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setattr('navira.sampling.ProgressBar', lambda total, name: ProgressBar(total, name, wait=.05))
    with pytest.raises(RuntimeError, match='broken'): sample(Breaks(40, 4), 'backbone', 40)
    for _ in range(50):
        if threading.active_count() > before: time.sleep(.1)     # its own thread may be about to end
    assert '/40' in stream.getvalue() and threading.active_count() <= before
