"""What the tests of the command line share: a process of its own, the same in this process, and wrong files."""
import os, subprocess, sys

import pytest


def navira(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "navira.cli", *args],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "COLUMNS": "100", **env},
    )


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    d = tmp_path_factory.mktemp("bad")
    (d / "broken.safetensors").write_bytes(b'\x10\0\0\0\0\0\0\0{"not": "really')
    (d / "deep.jsonl").write_text('{"prompt": ' + '[' * 20_000)
    (d / "deep.toml").write_text('name = ' + '[' * 20_000)
    (d / "foreign.ckpt").write_bytes(b"this is no checkpoint")
    (d / "empty").mkdir()
    (d / "nothing.txt").write_text("")
    (d / "words.txt").write_text("the dog sees the cat, and the owl sleeps.\n" * 40)
    (d / "list.json").write_text("[1, 2]")
    (d / "others").mkdir()
    (d / "others" / "tokenizer.json").write_text("{}")
    (d / "odd.jsonl").write_text('{"prompt": "fine"}\n{"text": "not"}\n')
    (d / "syntax.py").write_text("import navira\ndef f(:\n")
    (d / "fails.py").write_text("import navira\n\n1 / 0\n")
    (d / "stops.py").write_text("import sys\nsys.exit(3)\n")
    (d / "none.py").write_text("import navira\n")
    (d / "latin.txt").write_bytes("caf\xe9 ".encode("latin-1") * 50)
    return d


@pytest.fixture(scope="module")
def net():
    from navira.models.load import load

    return load()


@pytest.fixture
def run(net, monkeypatch, capsys):
    "The program in this process, with the embedded model at hand; what it printed"
    # these keep the `load` that there is when they are first imported: not the stand-in
    import navira.training.adapting, navira.training.critic, navira.training.finetuning  # noqa: E401, F401
    from navira.cli.app import main

    asked = []

    def load(source=None, device=None, **kw):
        asked.append(dict(source=source, **kw))
        return net

    monkeypatch.setattr("navira.models.load.load", load)

    def run(*args):
        with pytest.raises(SystemExit) as e:
            main([str(a) for a in args])
        printed = capsys.readouterr()
        assert not e.value.code, printed.err
        return printed.out

    run.asked = asked
    return run


def said(capsys, *args):
    "What a command prints, and its exit code: in this process."
    from navira.cli.app import app

    try:
        app(list(args))
    except SystemExit as e:
        return e.code, capsys.readouterr()


def refused(case, foreign, capsys, monkeypatch):
    "One line that names the value, exit code 2, no traceback."
    from navira.cli.app import main

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    args, expected = case
    with pytest.raises(SystemExit) as e:
        main([a.format(bad=foreign) for a in args])
    printed = capsys.readouterr()
    assert e.value.code == 2, printed
    assert expected in printed.err, printed.err
    assert "Traceback" not in printed.err + printed.out and len(printed.err.strip().splitlines()) == 1, printed.err
