"""The program as a user meets it: exit codes, policies of one's own, a shell that completes, what a terminal gets."""
import io, json, os, shutil, subprocess, sys, unicodedata
from pathlib import Path

import pytest
import typer
from hypothesis import given, strategies as st
from rich.console import Console

from helpers.cli import foreign, navira, net, refused, run  # noqa: F401
from helpers.replay import data_of, typed

MISTAKES = {
    "own policy, misspelt": (["generate", "--import", "{bad}/fail.py"], "did you mean 'fails.py'?"),
    "own policy that is not there": (["generate", "--import", "{bad}/nothin.py"], "not found"),
    "own module that is not there": (
        ["compare", "--import", "no_such_module_here"],
        "--import no_such_module_here: ModuleNotFoundError",
    ),
    "own policy with a wrong line": (["info", "--import", "{bad}/syntax.py"], "line 2: SyntaxError"),
    "own policy that fails": (
        ["sweep", "small", "--import", "{bad}/fails.py"],
        "line 3: ZeroDivisionError: division by zero",
    ),
    "own policy that stops": (["report", "--import", "{bad}/stops.py"], "line 2: SystemExit"),
    "own file without a policy": (["evaluate", "--import", "{bad}/none.py"], "it registers no policy"),
    "own file that is a folder": (["judge", "--import", "{bad}"], "not found"),
}

OWN = """
from dataclasses import replace
from navira import register
from navira.decoupling import navira_det

@register('{name}')
def mine(
    eta: float = .2, # how often
): return navira_det(eta)
"""


@pytest.fixture
def own(tmp_path):
    "A file with a policy of one's own, which is forgotten afterwards"
    from navira.registry import _about, _registry

    before = dict(_registry), dict(_about)
    (tmp_path / "json.py").write_text(OWN.format(name="mine"))  # called as a library is
    yield tmp_path / "json.py"
    _registry.clear(), _registry.update(before[0]), _about.clear(), _about.update(before[1])


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case, foreign, capsys, monkeypatch):
    refused(MISTAKES[case], foreign, capsys, monkeypatch)


@given(st.floats(allow_nan=False), st.integers(-(10**30), 10**30), st.text())
def test_a_number_may_be_spelled_as_python_does(x, i, text):
    from navira.cli.app import _hypers, _value

    same = lambda s, v: _value(s) == v and type(_value(s)) is type(v)
    assert (
        same(repr(x), x)
        and same(f"{abs(x):+.4e}", float(f"{abs(x):.4e}"))
        and same(repr(x).replace("0.", ".", 1), float(repr(x).replace("0.", ".", 1)))
    )
    assert same(str(i), i) and same(f"{i:_}", i) and same(f"{abs(i):+}", abs(i))
    assert _hypers([f"a={x!r}", f" b = {i} "]) == dict(a=x, b=i)
    if text[:1].isalpha() and text.strip().lower() not in ("inf", "infinity", "nan", "true", "false", "none", "null"):
        assert _value(text) == text


def test_an_own_policy_runs_in_every_command(own, run, tmp_path, monkeypatch):
    (own.parent / "beside.py").write_text('NAME = "mine"\n')
    own.write_text(own.read_text().replace("@register('mine')", "from beside import NAME\n@register(NAME)"))
    assert "how often" in run("info", "mine", "--import", own)
    assert (
        len(
            json.loads(
                run("generate", "--import", own, "--policy", "mine:eta=.5", "--budget", 4, "--length", 16, "--json")
            )["tokens"]
        )
        == 16
    )
    run(
        "compare",
        "--import",
        own,
        "--policies",
        "mine,mine:eta=.5",
        "--budgets",
        4,
        "-n",
        1,
        "--reference",
        "none",
        "--out",
        tmp_path / "out",
        "--show",
        0,
    )
    assert [c["label"] for c in json.loads((tmp_path / "out" / "compare.json").read_text())["cells"]] == [
        "mine",
        "mine:eta=.5",
    ]
    little = ["--budgets", 4, "-n", 1, "--reference", "none", "--out", tmp_path / "two", "--show", 0]
    run("compare", "--import", own, *little)
    labels = [c["label"] for c in json.loads((tmp_path / "two" / "compare.json").read_text())["cells"]]
    assert labels == ["backbone", "prism", "navira-det", "navira-piecewise", "remdm-cap:top_p=.5", "mine"]
    assert data_of((tmp_path / "two" / "replay.html").read_text())["panels"][-1]["name"] == "mine"
    (tmp_path / "grid.toml").write_text(
        'n = 8\nbudgets = [4]\nlength = 16\nmetrics = ["entropy"]\n[[entries]]\npolicy = "mine"\n'
    )
    for command in (
        ["sweep", tmp_path / "grid.toml", "--store", tmp_path / "s"],
        ["evaluate", tmp_path / "s"],
        ["judge", tmp_path / "s", "--dry-run"],
    ):
        run(*command, "--import", own)
    printed = run("report", tmp_path / "s", "--import", own)
    assert "Every point" in printed and "mine" in printed and "claims" not in printed


def test_an_own_module_is_found_from_here(own, run, tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(OWN.format(name="mine-too"))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert "how often" in run("info", "mine-too", "--import", "my_rules")  # the second time it is imported already


@given(st.text())
def test_a_text_cannot_control_the_terminal(text):
    from navira.cli.app import _shown

    safe = _shown(text)
    assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") for c in safe)
    if text.isprintable():
        assert safe == text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(
            sys.stdout.encoding or "utf-8"
        )


def test_a_log_gets_lines():
    "None in the first seconds; one for each tenth, and one after half a minute without"
    from navira.cli.app import _Log, _bar, err

    now = [0.0]
    with _Log("x", console=Console(file=(to := io.StringIO())), get_time=lambda: now[0]) as b:
        task = b.add_task("sampling", total=1000)
        for now[0] in range(0, 1000, 2):
            b.advance(task, 2)
    lines = to.getvalue().splitlines()
    assert (
        lines[0].startswith("sampling: 32 of 1000, 15 min 07 s to go")
        and lines[-1] == "sampling: 1000 of 1000"
        and 30 <= len(lines) <= 45
    )
    now[0] = 1000
    with _Log("x", console=Console(file=(to := io.StringIO())), get_time=lambda: now[0]) as b:
        task = b.add_task("sampling", total=1000)
        for now[0] in range(1000, 1100):
            b.advance(task, 10)
    assert len(to.getvalue().splitlines()) == 10
    with _Log("x", console=Console(file=(to := io.StringIO())), get_time=lambda: 0.0) as b:
        b.update(b.add_task("short", total=1), completed=1)
    assert to.getvalue() == ""
    assert err.is_terminal or isinstance(_bar(), _Log)


def test_names_with_brackets_are_no_markup(run, tmp_path, monkeypatch, capsys):
    "A path, a label or a title is printed as it is; `[/b]` would be an error of rich, after all the work"
    folder, flat = tmp_path / "run[/b]", lambda said: said.replace("\n", "")
    monkeypatch.setattr("navira.training.pretraining.train", lambda cfg, tell: Path(cfg.out) / "model")
    (tmp_path / "words.txt").write_text("the dog sees the cat. " * 40)
    assert f"model: {folder}/model" in flat(run("train", "--data", tmp_path / "words.txt", "--out", folder))
    said = run(
        "compare",
        "--policies",
        "backbone",
        "--budgets",
        2,
        "-n",
        8,
        "--reference",
        "none",
        "--show",
        0,
        "--out",
        folder,
    )
    assert f"{folder}/compare.json" in flat(said)
    (store,) = folder.glob("store-*")
    assert f"cells in {store}" in flat(run("evaluate", store, "--metrics", "entropy"))
    assert str(store) in flat(run("report", store)) and str(store) in flat(run("report", store, "--print"))
    (tmp_path / "grid.toml").write_text(
        'n = 1\nbudgets = [2]\nlength = 8\nmetrics = ["entropy"]\n[[entries]]\npolicy = "backbone"\nlabel = "plain [/b]"\n'  # noqa: E501
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert f"1 cells in {folder}/s" in flat(run("sweep", tmp_path / "grid.toml", "--store", folder / "s"))
    said = " ".join(run("sweep", tmp_path / "grid.toml", "--store", folder / "s", "--dry-run").split())
    assert "plain [/b]" in said and "run[/b]" in said


def test_help_says_what_is_taken_if_nothing_is_given():
    import click
    from navira.cli.app import app

    commands = typer.main.get_command(app).commands
    for name, command in commands.items():
        if name in ("train", "finetune", "critic"):
            continue
        for p in command.params:
            if not isinstance(p, click.Option) or p.is_flag or p.multiple:
                continue
            with command.make_context(name, [], resilient_parsing=True) as ctx:
                words = p.get_help_record(ctx)[1]
            assert p.help and (
                p.default is not None
                and "[default:" in words
                or "if not given" in words
                or p.name
                in ("prompt", "prompts", "replay", "beside", "config", "small", "endpoint", "base_url", "folder")
            ), (name, p.name)


def test_mistake_in_a_process():
    "The same through the real program."
    r = navira("generate", "--policy", "navria")
    assert (r.returncode, r.stdout) == (2, "") and r.stderr.strip() == "navira: policy 'navria': did you mean 'navira'?"


def test_a_warning_is_one_line(pytestconfig, tmp_path, capfd):
    "without the source that gave it; what peft and transformers tell each other about names is none of a user's"
    import warnings

    from navira.cli.app import _warned

    before = warnings.showwarning
    folder = shutil.copytree(pytestconfig.rootpath / "tests" / "golden" / "diffullama", tmp_path / "llama")
    for f in folder.glob("*token*.json"): f.write_text(f.read_text().replace('"mask_token"', '"no_mask"'))
    assert typed("info", folder, "--mask-id", 277) == 0
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("navira: warning: LlamaForCausalLM was trained from left to right.")
    with _warned():
        warnings.warn("`is_gradient_checkpointing` is deprecated", FutureWarning)
        warnings.warn("this hyper-parameter is called top_p now", FutureWarning)
    assert capfd.readouterr().err == "navira: warning: this hyper-parameter is called top_p now\n"
    assert warnings.showwarning is before


def test_version_and_help():
    import navira as package

    assert navira("--version").stdout.strip() == f"navira {package.__version__}"
    assert all(w in navira("--help").stdout for w in ("generate", "compare", "train", "finetune", "critic", "info"))


def test_version_needs_no_torch():
    code = "import sys, navira.cli as c\ntry: c.main(['--version'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"  # noqa: E501
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "words, found",
    [
        (["ge"], {"generate"}),
        (["generate", "--pol"], {"--policy"}),
        (["sweep", "--dr"], {"--dry-run"}),
        (["generate", "--policy", "navira-q"], {"navira-quadratic"}),
        (["compare", "--policies", "prism,remdm-s"], {"prism,remdm-switch"}),
        (["compare", "--task", "sudoku-2"], {"sudoku-25"}),
    ],
    ids=" ".join,
)
def test_a_shell_completes(words, found):
    "What bash asks, as `navira --install-completion` has it ask"
    said = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['navira']; from navira.cli.app import main; main()"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "_NAVIRA_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["navira", *words]),
            "COMP_CWORD": str(len(words)),
        },
    )
    assert set(said.stdout.split()) == found, said.stderr


def test_completion_knows_every_policy():
    "and does not import torch for it"
    code = "from navira.cli.app import complete; import sys; found = complete(''); assert 'torch' not in sys.modules; import navira.peers; from navira.registry import policies; assert sorted(found) == sorted(policies())"  # noqa: E501
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_completion_is_shown_for_a_shell():
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['navira', '--show-completion', 'bash']; from navira.cli.app import main; main()",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert said.returncode == 0 and "_NAVIRA_COMPLETE=complete_bash" in said.stdout


@pytest.mark.parametrize("words, expected", [
    (["generate", "--steps", "16"], "--budget counts forward passes"), (["sample"], "Did you mean 'generate'?"),
    (["generate", "--temperature", ".5"], "--set temperature=.5"), (["help", "genrate"], "generate")])
def test_words_of_other_programs_lead_to_ours(words, expected, capsys):
    from navira.cli import main
    with pytest.raises(SystemExit) as e: main(words)
    assert e.value.code == 2 and expected in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", [[], ["generate"], ["compare"]])
def test_help_is_asked_for_in_three_ways(command, run):
    assert run("help", *command) == run(*command, "-h") == run(*command, "--help")


def test_help_names_every_command_with_its_whole_sentence(run):
    from navira.cli.app import app
    words = run("--help").split()
    for name, command in typer.main.get_command(app).commands.items():
        assert name in words and " ".join(command.help.split("\n")[0].split()) in " ".join(words)


def test_an_interrupt_while_the_program_starts_shows_no_traceback():
    code = """import os, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == 'rich.progress': os.kill(os.getpid(), signal.SIGINT)
sys.argv = ['/usr/bin/navira', '-h']
sys.meta_path.insert(0, Interrupts())
import navira.cli"""
    stopped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert stopped.returncode and not stopped.stderr


@pytest.mark.parametrize("error", ["1 / 0", "st.no_such_field", "raise ValueError('no width')"])
def test_an_error_in_an_own_score_names_file_and_line(own, error, net, monkeypatch, capsys):
    from navira.cli.app import main
    own.write_text(f"""from dataclasses import replace
from navira import register
from navira.core import TopK
from navira.prism import binomial, prism

def score(st, p, where):
    {error}

@register('mine')
def mine(): return replace(prism(), remask=TopK(score, binomial(.5)))
""")
    monkeypatch.setattr("navira.models.load.load", lambda *_, **kw: net)
    with pytest.raises(SystemExit) as e: main([*"generate -p mine --budget 4 --length 8 --import".split(), str(own)])
    said = capsys.readouterr().err.strip()
    assert e.value.code == 2 and f"{own}: line 7: " in said and len(said.splitlines()) == 1
