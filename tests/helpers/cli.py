"What tests of the command line share: the program, in this process."
import pytest

def said(capsys, *args):
    "The exit code of the program in this process, and what it printed"
    from navira.cli.app import main
    with pytest.raises(SystemExit) as e: main([str(a) for a in args])
    return e.value.code or 0, capsys.readouterr()

@pytest.fixture(scope='module')
def net():
    from navira import load
    return load()

@pytest.fixture
def run(net, monkeypatch, capsys):
    "The program in this process, with the embedded model; `run.asked`: how it was asked for"
    import navira
    asked = []
    def load(source=None, device=None, **how):
        asked.append(dict(source=source, **how))
        return net
    monkeypatch.setattr(navira, 'load', load, raising=False)
    def run(*args):
        code, printed = said(capsys, *args)
        assert not code, printed.err
        return printed.out
    run.asked = asked
    return run

@pytest.fixture
def refuses(capsys):
    "The program with bad input: one line that names it, exit code 2, no traceback"
    def refuses(sentence, *args):
        code, printed = said(capsys, *args)
        assert code == 2 and sentence in printed.err, printed
        assert len(printed.err.strip().splitlines()) == 1 and not printed.out, printed
        return printed.err
    return refuses
