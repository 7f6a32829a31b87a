"""`navira compare`: what it runs, in which order, and the files that it writes."""
import errno, json, math
from pathlib import Path

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from navira.cli.compare import _seen
from navira.models.adapter import save_adapter
from navira.models.load import load, save
from navira.models.transformers import LinearQuality
from navira.registry import policies, policy
from helpers.cli import navira, net, run, said  # noqa: F401
from helpers.replay import data_of, states, typed
from toys import small_lm


def test_first_texts_come_before_the_long_part(run, tmp_path, monkeypatch):
    "Two policies on one prompt; asked twice, nothing is sampled twice"
    import navira.experiments.old_run as ex_run

    done, compute = [], ex_run.compute
    monkeypatch.setattr(
        "navira.experiments.old_run.compute", lambda b, *a: done.append((b.cell.policy, b.n)) or compute(b, *a)
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
    "args, cells, n", [([], 10, 12), (["--full"], 20, 32), (["--full", "--budgets", "8,16", "-n", "4"], 10, 4)], ids=str
)
def test_how_much_is_compared(args, cells, n, run, tmp_path, monkeypatch):
    import navira.experiments.old_sweep as ex_sweep

    class Asked(ValueError):
        pass

    def asked(grid, *a):
        raise Asked(f"{len(ex_sweep.cells(grid))} {grid.n}")

    monkeypatch.setattr("navira.experiments.old_run.run", asked)
    with pytest.raises(AssertionError, match=f"navira: {cells} {n}"):
        run("compare", "--reference", "none", "--show", 0, "--out", tmp_path, *args)


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


@pytest.mark.parametrize(
    "policies, shown",
    [("backbone,prism,navira-det", ["prism", "navira-det"]), ("backbone,mdlm", ["backbone", "mdlm"]), ("navira", [""])],
)
def test_compare_side_by_side(policies, shown, tmp_path):
    "The first and the last that take tokens back; the same text in both"
    assert (
        typed(
            "compare",
            "--policies",
            policies,
            "--budgets",
            "24",
            "-n",
            2,
            "--seed",
            1,
            "--reference",
            "none",
            "--show",
            0,
            "--out",
            tmp_path,
        )
        == 0
    )
    d = data_of((tmp_path / "replay.html").read_text())
    assert [p["name"] for p in d["panels"]] == shown and "24 forward passes, seed 1, sample " in d["title"]
    texts = {c["label"]: c["texts"] for c in json.loads((tmp_path / "compare.json").read_text())["cells"]}
    row = int(d["title"].split("sample ")[1].split(",")[0])
    for p in d["panels"]:
        assert "".join(d["vocab"][i] for i in list(states(p))[-1][0]) == texts[p["name"] or policies][row]


def test_other_peoples_models(tmp_path, pytestconfig, capsys):
    "One whose texts end early: they are compared at one length. A head makes the policies run that need one."
    model = load(base := pytestconfig.rootpath / "tests" / "golden" / "llada")
    torch.manual_seed(0)
    model.quality = LinearQuality(model.config.hidden_size)
    torch.nn.init.normal_(model.quality.linear.weight)
    save_adapter(model, tmp_path / "head")
    for head in ([], ["--head", str(tmp_path / "head")]):
        out = tmp_path / f"out{len(head)}"
        code, printed = said(capsys, "compare", "--model", base, *head, "--policies", "all", "--budgets", 4, "-n", 1,
                             "--reference", "none", "--out", out, "--show", 1)
        assert code == 0, printed
        cells = json.loads((out / "compare.json").read_text())["cells"]
        ran = {c["policy"] for c in cells}
        lacking = {k for k in policies() if policy(k).reads_quality} - (set() if not head else policies().keys())
        assert ran == policies().keys() - lacking - {"token-critic", "g-star"}


def test_without_named_policies_a_model_without_a_head_runs_what_needs_none(tmp_path, pytestconfig, capsys):
    "Told another shift, it samples anew"
    golden = pytestconfig.rootpath / "tests" / "golden" / "dream"
    args = ["compare", "--model", golden, "--budgets", 4, "-n", 1, "--reference", "none", "--out", tmp_path]
    for more in ([], ["--aligned"]):
        assert said(capsys, *args, *more)[0] == 0
        cells = json.loads((tmp_path / "compare.json").read_text())["cells"]
        assert [c["policy"] for c in cells] == ["backbone", "llada-low-confidence"]
    assert len(list(tmp_path.glob("store-*"))) == 2


def test_policies_may_be_separated_by_spaces(run, tmp_path):
    how = ["--budgets", 2, "-n", 1, "--reference", "none", "--show", 0, "--out", tmp_path]
    run("compare", "--policies", "prism", "apart", *how)
    assert [c["label"] for c in json.loads((tmp_path / "compare.json").read_text())["cells"]] == ["prism", "apart"]


@pytest.mark.parametrize(
    "goal, best, worst, said",
    [
        ("solved", (0.9, 0.8, 0.95), (0.5, 0.4, 0.6), "b solves 90.0%, a solves 50.0%; their intervals do not"),
        ("solved", (0.9, 0.5, 0.95), (0.5, 0.4, 0.6), "their intervals overlap."),
        ("perplexity", (50, 40, 60), (90, 80, 99), "b has a perplexity of 50, a has a perplexity of 90"),
        ("perplexity", (50, math.nan, math.nan), (90, 80, 99), "3 samples are too few for intervals"),
    ],
)
def test_what_was_seen_is_said_of_the_best_and_the_worst(goal, best, worst, said):
    rows = [
        dict(label=label, budget=8, entropy=4.0) | dict(zip((goal, f"{goal}_lo", f"{goal}_hi"), numbers))
        for label, numbers in (("a", worst), ("b", best))
    ]
    assert said in _seen(pd.DataFrame(rows), 3)
    assert _seen(pd.DataFrame(rows[:1]), 3) == "" == _seen(pd.DataFrame(rows).drop(columns=goal), 3)
