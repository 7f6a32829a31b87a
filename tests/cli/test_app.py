"""The command line as a user meets it: a process of its own, exit codes, one line for a mistake, files that are written."""  # noqa: E501

import errno, io, json, os, re, shlex, signal, subprocess, sys, unicodedata
from pathlib import Path

import pytest
import torch
import typer
from hypothesis import given, strategies as st
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from navira.models.checkpoints import save
from toys import small_lm


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


TINY = [
    a
    for s in (
        "dim=8",
        "blocks=1",
        "heads=2",
        "cond_dim=4",
        "vocab_size=300",
        "precision=fp32",
        "warmup=0",
        "eval_sequences=2",
    )
    for a in ("--set", s)
]

MISTAKES = {
    "unknown policy": (["generate", "--policy", "navria"], "did you mean 'navira'?"),
    "unknown policy to compare": (["compare", "--policies", "prism,navira-dett"], "did you mean 'navira-det'?"),
    "unknown sweep to estimate": (["info", "--bench", "--sweep", "smal"], "did you mean 'small'?"),
    "unknown hyper-parameter": (["generate", "--policy", "navira", "--set", "tao=1"], "did you mean 'tau'?"),
    "budget too small": (["generate", "--policy", "navira", "--budget", "1"], "budget=1"),
    "one budget of many too small": (["compare", "--budgets", "16,1"], "budget=1"),
    "budget is no number": (["compare", "--budgets", "16,many"], "16,many"),
    "no samples": (["generate", "-n", "0"], "n=0"),
    "more texts than memory": (["generate", "--prompt", "a", "-n", "1000000000000"], "GiB, and this machine has"),
    "more fillings than memory": (["fill", "a ___.", "-n", "1000000000000"], "GiB, and this machine has"),
    "no samples to compare": (["compare", "-n", "-3"], "n=-3"),
    "prompt too long": (["generate", "--prompt", "word " * 400], "longer than the 128"),
    "tau negative": (["generate", "--policy", "navira", "--set", "tau=-0.5"], "tau=-0.5"),
    "tau not finite": (["generate", "--policy", "navira", "--set", "tau=NaN"], "tau=nan"),
    "tau no number": (["generate", "--policy", "navira", "--set", "tau=warm"], "tau='warm': expected a number"),
    "a list for a number": (["generate", "--set", "eta=[1]"], "eta=[1]: expected a number"),
    "nothing for a number": (["generate", "--set", "p=null"], "p=None: expected a number"),
    "a truth for a number": (["generate", "--set", "on=true"], "on=True: expected a number"),
    "a number for a text": (["generate", "--policy", "navira", "--set", "score=1"], "score=1: expected text"),
    "text for a count": (["generate", "--set", "n_remask=two"], "n_remask='two'"),
    "show negative": (["compare", "--show", "-1"], "show=-1"),
    "taus unordered": (["generate", "--set", "tau_min=0.4", "--set", "tau_mid=0.1"], "tau_min=0.4 > tau_mid=0.1"),
    "set without a value": (["generate", "--set", "tau"], "name=value"),
    "length too large": (["generate", "--length", "4096"], "length=4096"),
    "missing checkpoint": (["generate", "--model", "no/such/model/folder"], "not found"),
    "broken checkpoint": (["generate", "--model", "{bad}/broken.safetensors"], "not a readable safetensors"),
    "foreign checkpoint": (["info", "{bad}/foreign.ckpt"], "not a zip archive"),
    "missing corpus": (["train", "--data", "{bad}/nothin.txt", "--out", "{bad}/run"], "nothing.txt"),
    "empty corpus": (["train", "--data", "{bad}/nothing.txt", "--out", "{bad}/run"], "empty"),
    "corpus is not UTF-8": (["train", "--data", "{bad}/latin.txt", "--out", "{bad}/run"], "not UTF-8 at byte"),
    "a number without its 0, and no corpus": (
        ["train", "--data", "{bad}/nothin.txt", "--out", "{bad}/run", "--set", "lr=.001"],
        "nothing.txt",
    ),
    "unknown setting": (
        ["train", "--data", "{bad}/latin.txt", "--out", "{bad}/run", "--set", "token=5"],
        "did you mean 'tokens'?",
    ),
    "settings are a list": (["train", "{bad}/list.json"], "expected settings by name"),
    "nothing to train": (
        ["finetune", "--data", "{bad}/words.txt", "--out", "{bad}/run", "--head-steps", "0", "--joint-steps", "0"],
        "head_steps=0 and joint_steps=0",
    ),
    "a rate that ruins the weights": (
        [
            "train",
            "--data",
            "{bad}/words.txt",
            "--out",
            "{bad}/ruined",
            "--tokens",
            "64",
            "--length",
            "4",
            "--batch-size",
            "4",
            *TINY,
            "--set",
            "lr=1e300",
        ],
        "no checkpoint was written. Expected a lower learning rate (lr=1e+300)",
    ),
    "a size that no machine has": (
        ["train", "--data", "{bad}/words.txt", "--out", "{bad}/run", "--set", "dim=1e12"],
        "dim=1000000000000: expected 1 to 65536",
    ),
    "a folder with files of others": (
        ["train", "--data", "{bad}/words.txt", "--out", "{bad}/others"],
        "holds tokenizer.json",
    ),
    "no data given": (["finetune", "--out", "{bad}/run"], "data: not given"),
    "output cannot be written": (["compare", "--out", "{bad}/nothing.txt/demo"], "cannot write to"),
    "replay cannot be written": (["generate", "--replay", "{bad}/nothing.txt/run.html"], "cannot write to"),
    "empty reference": (
        ["compare", "--budgets", "2", "-n", "1", "--reference", "", "--out", "{bad}/out"],
        "--reference ''",
    ),
    "empty reference to evaluate": (["evaluate", "--reference", ""], "--reference ''"),
    "empty rule to report": (["report", "--eos", ""], "--eos ''"),
    "no length": (["generate", "--length", "0"], "length=0"),
    "seed beyond 64 bits": (["generate", "--seed", "18446744073709551616"], "seed=18446744073709551616"),
    "seed to compare beyond 64 bits": (["compare", "--seed", "18446744073709551616"], "seed=18446744073709551616"),
    "samples beyond 64 bits": (["generate", "-n", "18446744073709551616"], "n=18446744073709551616"),
    "samples beyond memory": (["generate", "-n", "1000000000000000"], "this machine has"),
    "samples beyond any memory": (["generate", "-n", "4611686018427387904"], "this machine has"),
    "own policy, misspelt": (["generate", "--import", "{bad}/fail.py"], "did you mean 'fails.py'?"),
    "budget beyond 64 bits": (["generate", "--budget", "18446744073709551616"], "budget=18446744073709551616"),
    "budgets beyond 64 bits": (["compare", "--budgets", "18446744073709551616"], "18446744073709551616"),
    "a hyper-parameter beyond 64 bits": (
        ["generate", "--policy", "navira", "--set", "n_remask=1" + 400 * "0"],
        "expected a number of at most 64 bits",
    ),
    "a count without end": (["generate", "--policy", "dream-entropy", "--set", "top_k=inf"], "top_k=inf"),
    "a wrong choice": (["generate", "--policy", "navira-onepass", "--set", "score=bth"], "did you mean 'both'?"),
    "a wrong choice in a name": (["compare", "--policies", "prism,navira-onepass:score=bth"], "did you mean 'both'?"),
    "a name with nothing after it": (["generate", "--policy", "navira:"], "expected navira:name=value"),
    "a name with half a setting": (["compare", "--policies", "navira:tau"], "expected name=value"),
    "a setting in two places": (
        ["generate", "--policy", "navira:tau=.1", "--set", "tau=.2"],
        "tau: in navira:tau=.1 and in --set",
    ),
    "one policy under two names": (
        ["compare", "--policies", "navira,navira:tau=.2", "--budgets", "8"],
        "are the same cell",
    ),
    "unknown policy beside": (
        ["generate", "--replay", "{bad}/r.html", "--beside", "prism:et=1"],
        "did you mean 'eta'?",
    ),
    "a prompt that is no text": (["generate", "--prompt", "caf\udce9"], "--prompt: not UTF-8 at character 3"),
    "a prompt to compare that is no text": (["compare", "--prompt", "caf\udce9"], "--prompt: not UTF-8 at character 3"),
    "prompts that are no text": (["generate", "--prompts", "{bad}/latin.txt"], "not UTF-8 at byte 3"),
    "prompts that are not there": (["generate", "--prompts", "{bad}/nothin.txt"], "not found"),
    "prompts that are a folder": (["generate", "--prompts", "{bad}"], "expected a file"),
    "no prompt in a file": (["generate", "--prompts", "{bad}/nothing.txt"], "no prompt in it"),
    "prompts of another kind": (["generate", "--prompts", "{bad}/odd.jsonl"], "line 2: expected a JSON object"),
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
    "unknown precision": (["generate", "--dtype", "fp8"], "dtype 'fp8'"),
    "neither policy nor model": (["info", "navira-onepas"], "the policy 'navira-onepass'?"),
    "unknown reference": (
        ["compare", "--budgets", "2", "-n", "1", "--reference", "smolm2", "--out", "{bad}/out"],
        "did you mean 'smollm2'?",
    ),
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


@pytest.fixture(scope="module")
def net():
    from navira.models.loading import load

    return load()


@pytest.fixture
def run(net, monkeypatch, capsys):
    "The program in this process, with the embedded model at hand; what it printed"
    pass
    from navira.cli.app import main

    asked = []

    def load(source=None, device=None, **kw):
        asked.append(dict(source=source, **kw))
        return net

    monkeypatch.setattr("navira.models.loading.load", load)

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


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case, foreign, capsys, monkeypatch):
    "One line that names the value, exit code 2, no traceback."
    from navira.cli.app import main

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    args, expected = MISTAKES[case]
    with pytest.raises(SystemExit) as e:
        main([a.format(bad=foreign) for a in args])
    printed = capsys.readouterr()
    assert e.value.code == 2, printed
    assert expected in printed.err, printed.err
    assert "Traceback" not in printed.err + printed.out and len(printed.err.strip().splitlines()) == 1, printed.err


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


def test_numbers_as_people_type_them(run, net):
    "reach the policy as numbers"
    from navira import sample

    said = [
        json.loads(l)
        for l in run(
            "generate",
            "--budget",
            8,
            "--length",
            24,
            "--policy",
            "navira-onepass",
            "--set",
            "p=.7",
            "--set",
            "eta=+4e-1",
            "--set",
            "n_remask=1_0",
            "--set",
            "score=both",
            "--json",
        ).splitlines()
    ]
    same = sample(net, "navira-onepass", 8, length=24, p=0.7, eta=0.4, n_remask=10, score="both")
    assert said[0]["tokens"] == same.tokens[0].tolist() and said[0]["hyper"] == dict(
        p=0.7, eta=0.4, n_remask=10, score="both"
    )


def test_a_policy_is_typed_with_its_hyper_parameters(run):
    args = ["generate", "--budget", 8, "--length", 24, "--json"]
    a, b, c = (
        [json.loads(l)["tokens"] for l in run(*args, *more).splitlines()]
        for more in (
            ["--policy", "prism:p=.5; eta=.5"],
            ["--policy", "prism", "--set", "p=.5", "--set", "eta=.5"],
            ["--policy", "prism"],
        )
    )
    assert a == b != c


def test_every_text_has_choices():
    "that `policy` accepts, all of them, and nothing else"
    import navira.peers  # noqa: F401  registers the policies
    from navira.registry import choices, parameters, policies, policy

    texts = [
        (name, k, p)
        for name, f in policies().items()
        for k, p in parameters(f).items()
        if isinstance(p.default, str) and k != "critic"
    ]  # which is a file
    assert len(texts) > 12
    for name, k, p in texts:
        offered = choices(p)
        assert p.default in offered and len(offered) > 1
        for v in offered:
            policy(name, **{k: v})
        with pytest.raises(KeyError, match=f"did you mean '{offered[-1]}'"):
            policy(name, **{k: offered[-1][:-1]})


def test_info_fits_80_columns(run, monkeypatch):
    "with every policy, hyper-parameter and choice in it, whole"
    from navira.cli.app import out
    from navira.registry import parameters, policies

    monkeypatch.setattr(out, "_width", 80)
    said = run("info")
    lines = [l.split() for l in said.splitlines()]
    assert max(map(len, said.splitlines())) <= 80 and "…" not in said
    assert all(name in {l[0] for l in lines if l} for name in policies())
    words = {w for l in lines for w in l}
    assert (
        all(any(w.startswith(f"{k}=") for w in words) for f in policies().values() for k in parameters(f))
        and "score=logit|probability|drawn|both" in words
    )


def test_info_on_one_policy(run):
    said = " ".join(run("info", "navira-onepass").split())
    assert (
        "score logit one of logit, probability, drawn, both; 'drawn': new tokens by the probability" in said
        and "the mean of the two, as logits" in said
        and "Parameters" not in said
        and said.count("the mean of the two") == 1
    )
    assert (
        "tau_min 0.05" in (said := " ".join(run("info", "navira-piecewise").split()))
        and "at u = p2" in said
        and "remask probability" in said
    )  # a scheduled one's comments stand in two places


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
    (tmp_path / "grid.toml").write_text(
        'n = 8\nbudgets = [4]\nlength = 16\nmetrics = ["entropy"]\n[[entries]]\npolicy = "mine"\n'
    )
    for command in (
        ["sweep", tmp_path / "grid.toml", "--store", tmp_path / "s"],
        ["evaluate", tmp_path / "s"],
        ["report", tmp_path / "s"],
        ["judge", tmp_path / "s", "--dry-run"],
    ):
        run(*command, "--import", own)


def test_an_own_module_is_found_from_here(own, run, tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(OWN.format(name="mine-too"))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert "how often" in run("info", "mine-too", "--import", "my_rules")  # the second time it is imported already


def test_prompts(run, tmp_path):
    "Typed several times, from a file, and -n of each; JSON says which"
    (tmp_path / "p.txt").write_bytes("\ufeffIt was\r\n\n caf\xe9 and\n".encode())
    (tmp_path / "p.jsonl").write_text('{"prompt": "Two\\nlines"}\n', encoding="utf-8")
    args = ["generate", "--prompt", "One", "--prompt", "Two", "--budget", 2, "--length", 24, "--json"]
    rows = [json.loads(l) for l in run(*args, "-n", 2).splitlines()]
    assert [(r["prompt"], r["sample"]) for r in rows] == [("One", 0), ("One", 1), ("Two", 2), ("Two", 3)] and all(
        r["text"].startswith(r["prompt"]) for r in rows
    )
    assert [json.loads(l)["prompt"] for l in run(*args, "--prompts", tmp_path / "p.txt").splitlines()] == [
        "One",
        "Two",
        "It was",
        " caf\xe9 and",
    ]
    assert json.loads(run(*args[:1], *args[5:], "--prompts", tmp_path / "p.jsonl"))["prompt"] == "Two\nlines"


def test_texts_of_several_lengths(run, tmp_path):
    "JSON has the tokens of each, and no filling behind them; a replay of them is refused by the word that was typed"
    args = [
        "generate",
        "--prompt",
        "He<|mask|>.",
        "--prompt",
        "She said<|mask|><|mask|> and left.",
        "--budget",
        4,
        "--policy",
        "backbone",
        "--json",
    ]
    short, long = ([*json.loads(l)["tokens"]] for l in run(*args).splitlines())
    assert len(short) < len(long) and min(short + long) >= 0
    with pytest.raises(AssertionError, match=f"--replay .*two.html: the texts have {len(short)} to {len(long)} tokens"):
        run(*args, "--replay", tmp_path / "two.html")
    assert not list(tmp_path.iterdir())


def test_charged_and_run(run):
    said = json.loads(run("generate", "--policy", "navira-det", "--budget", 17, "--length", 32, "--json"))
    assert (
        said["charged"] == 16 and said["n_forward"] < 16 and said["budget"] == 17
    )  # no pass to rate tokens in the first half
    assert f"--- navira-det, {said['n_forward']} forward passes run, 16 charged, seed 0" in run(
        "generate", "--policy", "navira-det", "--budget", 17, "--length", 32
    )
    assert "keeps to no budget" in run("generate", "--policy", "first-hitting", "--budget", 4, "--length", 16)


@pytest.mark.parametrize(
    "typed, given",
    [
        ([], dict(dtype=None)),
        (["--dtype", "bf16", "--model", "embedded"], dict(dtype="bf16")),
        (["--dtype", "float32"], dict(dtype="float32")),
    ],
    ids=str,
)
def test_dtype_and_embedded_reach_the_model(run, typed, given, tmp_path):
    run("generate", "--budget", 2, "--length", 8, *typed)
    run(
        "compare",
        "--policies",
        "backbone",
        "--budgets",
        2,
        "-n",
        1,
        "--reference",
        "none",
        "--show",
        0,
        "--out",
        tmp_path,
        *typed,
    )
    assert run.asked == [dict(source=None, **given)] * 2


def test_fill(run, net, monkeypatch):
    "What was typed reaches `navira.fill`; a text cannot control the terminal, and JSON is exact"
    import navira
    from navira.sampling import Samples

    asked = []

    class Wild:
        def decode(self, ids, skip_special_tokens):
            return "Caf\xe9\x1b[31m\x9b2J\r\u202e\nend"

    def fill(*args, **kw):
        asked.append((args, kw))
        return Samples(torch.zeros(2, 8, dtype=torch.int64), torch.tensor([3, 4]), 4, 8, 0.0, Wild(), seed=7, charged=4)

    monkeypatch.setattr(navira, "fill", fill, raising=False)
    args = [
        "fill",
        "The man ___.",
        "-n",
        2,
        "--tokens",
        1,
        "--policy",
        "prism:p=.7",
        "--set",
        "eta=.1",
        "--seed",
        7,
        "--budget",
        8,
    ]
    said = run(*args)
    assert asked == [(("The man ___.", 2, 1, net, "prism", 8, 7), dict(p=0.7, eta=0.1))]
    assert (
        "Caf\xe9\\x1b[31m\\x9b2J\\r\\u202e\nend" in said and "3 forward passes run, 4 charged, seed 7, sample 0" in said
    )
    assert [json.loads(l)["text"] for l in run(*args, "--json").splitlines()] == [
        "Caf\xe9\x1b[31m\x9b2J\r\u202e\nend"
    ] * 2


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


def test_first_texts_come_before_the_long_part(run, tmp_path, monkeypatch):
    "Two policies on one prompt; asked twice, nothing is sampled twice"
    import navira.experiments.run as ex_run

    done, compute = [], ex_run.compute
    monkeypatch.setattr(
        "navira.experiments.run.compute", lambda b, *a: done.append((b.cell.policy, b.n)) or compute(b, *a)
    )
    args = [
        "compare",
        "--policies",
        "backbone, prism:eta=.3, navira-det:eta=.3",
        "--budgets",
        "4,8",
        "-n",
        2,
        "--reference",
        "none",
        "--out",
        tmp_path,
        "--show",
        1,
    ]
    first = run(*args)
    texts, table = first.split("a cell, seed 0")[0], first.split("a cell, seed 0")[1]
    assert [l for l in texts.splitlines() if l[:1].isalpha()] == ["prism:eta=.3", "navira-det:eta=.3"] and texts.count(
        "· It was a dark night"
    ) == 2
    assert done[:2] == [("prism", 1), ("navira-det", 1)] and len(done) == 8 and "charged" in table and "run" in table
    again = run(*args)
    assert len(done) == 8 and again.split("passes")[0] == first.split("passes")[0]
    cells = json.loads((tmp_path / "compare.json").read_text())["cells"]
    assert [(c["label"], c["budget"], c["charged"], c["hyper"]) for c in cells[3:]] == [
        ("backbone", 8, 8, {}),
        ("prism:eta=.3", 8, 8, dict(eta=0.3)),
        ("navira-det:eta=.3", 8, 8, dict(eta=0.3)),
    ]


@pytest.mark.parametrize(
    "args, cells, n", [([], 8, 12), (["--full"], 16, 32), (["--full", "--budgets", "8,16", "-n", "4"], 8, 4)], ids=str
)
def test_how_much_is_compared(args, cells, n, run, tmp_path, monkeypatch):
    import navira.experiments.sweep as ex_sweep

    class Asked(ValueError):
        pass

    def asked(grid, *a):
        raise Asked(f"{len(ex_sweep.cells(grid))} {grid.n}")

    monkeypatch.setattr("navira.experiments.run.run", asked)
    with pytest.raises(AssertionError, match=f"navira: {cells} {n}"):
        run("compare", "--reference", "none", "--show", 0, "--out", tmp_path, *args)


def test_evaluate_without_a_reference(tmp_path, capsys):
    "What needs a reference is left out in a sentence; asked for by name it is refused"
    from navira.experiments.sweep import read_sweep
    from navira.experiments.run import run
    from navira.cli.app import main

    grid = dict(
        budgets=[4], n=2, features=4, metrics=["entropy", "perplexity"], device="cpu", entries=[dict(policy="backbone")]
    )
    store = run(read_sweep(grid), tmp_path / "store", small_lm(seed=3))
    with (
        pytest.warns(UserWarning, match="^perplexity, features, mauve: not measured, since the reference is 'none'$"),
        pytest.raises(SystemExit) as e,
    ):
        main(["evaluate", str(store.folder), "--reference", "none"])
    assert not e.value.code and [p.name.split("-")[1] for p in (store.folder / "metrics").glob("*")] == [
        "entropy.parquet"
    ]
    capsys.readouterr()
    with pytest.raises(SystemExit) as e:
        main(["evaluate", str(store.folder), "--reference", "none", "--metrics", "perplexity,entropy"])
    assert e.value.code == 2 and "reference 'none': perplexity cannot be measured" in capsys.readouterr().err


def test_names_with_brackets_are_no_markup(run, tmp_path, monkeypatch, capsys):
    "A path, a label or a title is printed as it is; `[/b]` would be an error of rich, after all the work"
    pass
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


def test_files_of_a_comparison_are_whole_or_as_they_were(run, tmp_path, monkeypatch):
    from navira.cli.app import main

    args = [
        "compare",
        "--policies",
        "backbone",
        "--budgets",
        2,
        "-n",
        1,
        "--reference",
        "none",
        "--out",
        tmp_path,
        "--show",
        0,
    ]
    run(*args)
    before = {p.name: p.read_bytes() for p in tmp_path.glob("*.*")}
    whole = Path.write_text

    def half(path, text, *a, **kw):
        whole(path, text[: len(text) // 2], *a, **kw)
        raise OSError(errno.ENOSPC, "No space left on device")

    for name, first in {
        "compare.json": "{",
        "replay.html": "<",
    }.items():  # a file is written under a temporary name: known by how it begins
        assert before[name]
        monkeypatch.setattr(
            Path,
            "write_text",
            lambda path, text, *a, **kw: (half if text.startswith(first) else whole)(path, text, *a, **kw),
        )
        with pytest.raises(SystemExit) as e:
            main([str(a) for a in args])
        assert e.value.code == 2 and {p.name: p.read_bytes() for p in tmp_path.glob("*.*")} == before


def test_a_report_of_too_few_texts_says_so(tmp_path, capsys):
    from navira.experiments.sweep import read_sweep
    from navira.experiments.run import run
    from navira.cli.app import main

    store = run(
        read_sweep(dict(budgets=[4], n=2, metrics=["entropy"], device="cpu", entries=[dict(policy="backbone")])),
        tmp_path / "store",
        small_lm(seed=3),
    )
    with pytest.raises(SystemExit) as e:
        main(["report", str(store.folder)])
    assert e.value.code == 2 and "at most 2 texts a point, and an interval needs 8" in capsys.readouterr().err


def test_a_report_is_short_and_its_tables_are_whole(run, tmp_path, monkeypatch):
    import navira.experiments.run as ex_run
    from navira.experiments.sweep import read_sweep
    from navira.experiments.measure import evaluate_store
    from navira.cli.app import out

    monkeypatch.setattr(out, "_width", 80)
    entries = [dict(policy=p, eta=0.3, trace=True) for p in ("prism", "navira-det", "navira")] + [
        dict(policy="backbone")
    ]
    store = evaluate_store(
        ex_run.run(
            read_sweep(
                dict(
                    budgets=[6, 12],
                    n=8,
                    batch_size=8,
                    metrics=["entropy", "repetition", "sets"],
                    device="cpu",
                    entries=entries,
                )
            ),
            tmp_path / "store",
            small_lm(seed=3),
        )
    )
    short, long = run("report", store.folder), run("report", store.folder, "--print")
    assert (
        "The claims of the paper" in short
        and f"written: {store.folder}/report/report.md" in short
        and len(short.splitlines()) < 100 < len(long.splitlines())
    )
    assert max(len(l) for l in short.splitlines() if "written" not in l) <= 80 and "…" not in short + long
    assert "measured as" in long and "entropy" in long


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


def test_generate(tmp_path):
    "Prompt kept, JSON lines, the same text for the same seed, a replay."
    args = [
        "generate",
        "--prompt",
        "It was a dark night",
        "--policy",
        "navira-sigmoid",
        "--budget",
        "8",
        "-n",
        "2",
        "--seed",
        "5",
        "--json",
    ]
    a, b = navira(*args), navira(*args, "--replay", str(tmp_path / "new" / "run.html"))
    assert a.returncode == 0 and a.stdout == b.stdout, a.stderr + b.stderr
    rows = [json.loads(l) for l in a.stdout.splitlines()]
    assert len(rows) == 2 and all(
        r["text"].startswith("It was a dark night") and r["steps"] == 4 and r["n_forward"] <= 8 for r in rows
    )
    assert rows[0]["tokens"] != rows[1]["tokens"]
    assert "<html" in (tmp_path / "new" / "run.html").read_text()


def test_infill():
    r = navira("generate", "--prompt", "He said<|mask|><|mask|><|mask|> and left.", "--length", "16", "--budget", "6")
    assert r.returncode == 0 and "He said" in r.stdout and " and left." in r.stdout and "<|mask|>" not in r.stdout, (
        r.stdout + r.stderr
    )


def test_compare_without_reference(tmp_path):
    r = navira(
        "compare",
        "--policies",
        "all",
        "--budgets",
        "4",
        "-n",
        "2",
        "--reference",
        "none",
        "--out",
        str(tmp_path / "out"),
        "--show",
        "1",
    )
    assert r.returncode == 0, r.stderr
    cells = json.loads((tmp_path / "out" / "compare.json").read_text())["cells"]
    from navira import policies

    assert [c["policy"] for c in cells] == list(policies())
    assert all(
        (c["n_forward"] <= c["budget"] or not c["matched"])
        and len(c["texts"]) == 2
        and "<|mask|>" not in "".join(c["texts"])
        for c in cells
    )
    assert (tmp_path / "out" / "replay.html").exists()


def test_all_means_all_that_the_model_can_run(tmp_path):
    "A model without a head and with another vocabulary: no PRISM, no embedded critic"
    lm = small_lm(quality_blocks=None)
    lm.tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(10)} | {"<|mask|>": 10}, unk_token="w0"))
    save(lm, tmp_path / "m")
    args = [
        "compare",
        "--model",
        str(tmp_path / "m"),
        "--budgets",
        "2",
        "-n",
        "1",
        "--reference",
        "none",
        "--out",
        str(tmp_path / "out"),
        "--policies",
    ]
    r = navira(*args, "all")
    assert r.returncode == 0, r.stderr
    ran = {c["policy"] for c in json.loads((tmp_path / "out" / "compare.json").read_text())["cells"]}
    assert {"backbone", "mdlm", "remdm-cap"} <= ran and not {"prism", "navira", "token-critic"} & ran
    assert "left out: prism: " in r.stderr and "left out: token-critic: the critic's vocabulary" in r.stderr
    r = navira(*args, "mdlm,token-critic")
    assert r.returncode == 2 and "the critic's vocabulary" in r.stderr


def test_version_and_help():
    import navira as package

    assert navira("--version").stdout.strip() == f"navira {package.__version__}"
    assert all(w in navira("--help").stdout for w in ("generate", "compare", "train", "finetune", "critic", "info"))


@pytest.mark.parametrize(
    "command, config", [("train", "TrainConfig"), ("finetune", "FinetuneConfig"), ("critic", "CriticConfig")]
)
def test_help_shows_the_defaults(command, config, capsys):
    "of every setting, as they are"
    import dataclasses
    from navira.training.critic import CriticConfig
    from navira.training.settings import FinetuneConfig, TrainConfig, typed

    code, printed = said(capsys, command, "--help")
    shown = dict(re.findall(r"^ *(\w+)=(\S+|\[.*?\])  ", printed.out, re.M))
    own = {
        f.name: f.default
        for f in dataclasses.fields(
            dict(TrainConfig=TrainConfig, FinetuneConfig=FinetuneConfig, CriticConfig=CriticConfig)[config]
        )
        if f.default not in (None, dataclasses.MISSING)
    }
    assert code == 0 and shown.keys() == own.keys()
    assert {k: typed(k, json.loads(v) if v[0] == "[" else v, type(own[k]).__name__) for k, v in shown.items()} == own
    assert f"[default: ({own['batch_size']})]" in " ".join(printed.out.split())


def test_a_run_is_stopped_and_goes_on(foreign, tmp_path, capsys, monkeypatch):
    "Ctrl-C prints the command that goes on; typed as it stands, it does. A number may be written as .002"
    import navira.training.loop as training_loop

    real = training_loop.train_step

    def pressed(tr, *a):
        if tr.step == 6:
            signal.raise_signal(signal.SIGINT)
        return real(tr, *a)

    for room in ("navira.training.loop", "navira.training.pretraining"):
        monkeypatch.setattr(f"{room}.train_step", pressed)
    code, printed = said(
        capsys,
        "train",
        "--data",
        str(foreign / "words.txt"),
        "--out",
        str(tmp_path / "my run"),
        "--length",
        "4",
        "--batch-size",
        "4",
        *TINY,
        "--set",
        "lr=.002",
        "--set",
        "epochs=1",
    )
    assert code == 130 and "times the text, in about" in printed.err
    command = re.search(r"step 7 of \d+ is saved. To go on: navira (.*)", printed.err)[1]
    for room in ("navira.training.loop", "navira.training.pretraining"):
        monkeypatch.setattr(f"{room}.train_step", real)
    code, printed = said(capsys, *shlex.split(command))
    assert code in (0, None) and f"model: {tmp_path / 'my run' / 'model'}" in printed.out, printed
    assert json.loads((tmp_path / "my run" / "run.json").read_text())["lr"] == 0.002


def test_info():
    r = navira("info")
    assert r.returncode == 0 and "navira-piecewise" in r.stdout and "quality head" in r.stdout


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
