"""`navira generate` and `navira fill`, as a user meets them."""
import json

import pytest
import torch

from helpers.cli import foreign, navira, net, refused, run  # noqa: F401
from helpers.replay import data_of, states, typed

MISTAKES = {
    "unknown policy": (["generate", "--policy", "navria"], "did you mean 'navira'?"),
    "unknown hyper-parameter": (["generate", "--policy", "navira", "--set", "tao=1"], "did you mean 'tau'?"),
    "budget too small": (["generate", "--policy", "navira", "--budget", "1"], "budget=1"),
    "no samples": (["generate", "-n", "0"], "n=0"),
    "more texts than memory": (["generate", "--prompt", "a", "-n", "1000000000000"], "GiB, and this machine has"),
    "more fillings than memory": (["fill", "a ___.", "-n", "1000000000000"], "GiB, and this machine has"),
    "prompt too long": (["generate", "--prompt", "word " * 400], "longer than the 128"),
    "tau negative": (["generate", "--policy", "navira", "--set", "tau=-0.5"], "tau=-0.5"),
    "tau not finite": (["generate", "--policy", "navira", "--set", "tau=NaN"], "tau=nan"),
    "tau no number": (["generate", "--policy", "navira", "--set", "tau=warm"], "tau='warm': expected a number"),
    "a list for a number": (["generate", "--set", "eta=[1]"], "eta=[1]: expected a number"),
    "nothing for a number": (["generate", "--set", "top_p=null"], "top_p=None: expected a number"),
    "a truth for a number": (["generate", "--policy", "prism", "--set", "on=true"], "on=True: expected a number"),
    "a number for a text": (["generate", "--policy", "navira", "--set", "score=1"], "score=1: expected text"),
    "text for a count": (["generate", "--policy", "prism", "--set", "n_remask=two"], "n_remask='two'"),
    "taus unordered": (["generate", "-p", "navira-piecewise:tau_min=.4+tau_mid=.1"], "tau_min=0.4 > tau_mid=0.1"),
    "set without a value": (["generate", "--set", "tau"], "name=value"),
    "length too large": (["generate", "--length", "4096"], "length=4096"),
    "missing checkpoint": (["generate", "--model", "no/such/model/folder"], "not found"),
    "broken checkpoint": (["generate", "--model", "{bad}/broken.safetensors"], "not a readable safetensors"),
    "replay cannot be written": (["generate", "--replay", "{bad}/nothing.txt/run.html"], "cannot write to"),
    "replay that is no page": (["generate", "--replay", "{bad}/run.txt"], "expected a name that ends in .html"),
    "no length": (["generate", "--length", "0"], "length=0"),
    "a block beyond 64 bits": (["generate", "--block-length", "99999999999999999999"], "block_length=99999"),
    "a device without numbers": (["generate", "--device", "meta"], "device='meta': PyTorch sees no such device"),
    "a prompt nested without end": (["generate", "--prompts", "{bad}/deep.jsonl"], 'line 1: expected a JSON object'),
    "seed beyond 64 bits": (["generate", "--seed", "18446744073709551616"], "seed=18446744073709551616"),
    "samples beyond 64 bits": (["generate", "-n", "18446744073709551616"], "n=18446744073709551616"),
    "samples beyond memory": (["generate", "-n", "1000000000000000"], "this machine has"),
    "samples beyond any memory": (["generate", "-n", "4611686018427387904"], "this machine has"),
    "budget beyond 64 bits": (["generate", "--budget", "18446744073709551616"], "budget=18446744073709551616"),
    "a hyper-parameter beyond 64 bits": (
        ["generate", "--policy", "navira", "--set", "n_remask=1" + 400 * "0"],
        "expected a number of at most 64 bits",
    ),
    "a count without end": (["generate", "--policy", "dream-entropy", "--set", "top_k=inf"], "top_k=inf"),
    "a wrong choice": (["generate", "--policy", "navira-onepass", "--set", "score=bth"], "did you mean 'both'?"),
    "a name with nothing after it": (["generate", "--policy", "navira:"], "expected navira:name=value"),
    "a setting given twice": (["generate", "--policy", "prism:eta=0.1;eta=0.2"], "eta is given twice"),
    "a --set given twice": (["generate", "--set", "tau=1", "--set", "tau=2"], "tau is given twice"),
    "a setting in two places": (
        ["generate", "--policy", "navira:tau=.1", "--set", "tau=.2"],
        "tau: in navira:tau=.1 and in --set",
    ),
    "unknown policy beside": (
        ["generate", "--replay", "{bad}/r.html", "--beside", "prism:et=1"],
        "did you mean 'eta'?",
    ),
    "a prompt that is no text": (["generate", "--prompt", "caf\udce9"], "--prompt: not UTF-8 at character 3"),
    "prompts that are no text": (["generate", "--prompts", "{bad}/latin.txt"], "not UTF-8 at byte 3"),
    "prompts that are not there": (["generate", "--prompts", "{bad}/nothin.txt"], "not found"),
    "prompts that are a folder": (["generate", "--prompts", "{bad}"], "expected a file"),
    "no prompt in a file": (["generate", "--prompts", "{bad}/nothing.txt"], "no prompt in it"),
    "prompts of another kind": (["generate", "--prompts", "{bad}/odd.jsonl"], "line 2: expected a JSON object"),
    "unknown precision": (["generate", "--dtype", "fp8"], "dtype 'fp8'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case, foreign, capsys, monkeypatch):
    refused(MISTAKES[case], foreign, capsys, monkeypatch)


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
            "top_p=.7",
            "--set",
            "eta=+4e-1",
            "--set",
            "n_remask=1_0",
            "--set",
            "score=both",
            "--json",
        ).splitlines()
    ]
    same = sample(net, "navira-onepass", 8, length=24, top_p=0.7, eta=0.4, n_remask=10, score="both")
    assert said[0]["tokens"] == same.tokens[0].tolist() and said[0]["hyper"] == dict(
        top_p=0.7, eta=0.4, n_remask=10, score="both"
    )


def test_a_policy_is_typed_with_its_hyper_parameters(run):
    args = ["generate", "--budget", 8, "--length", 24, "--json"]
    a, b, c, old = (
        [json.loads(l)["tokens"] for l in run(*args, *more).splitlines()]
        for more in (
            ["--policy", "prism:top_p=.5+eta=5e-1"],
            ["--policy", "prism", "--set", "top_p=.5", "--set", "eta=.5"],
            ["--policy", "prism"],
            ["--policy", "prism:top_p=.5; eta=.5"],
        )
    )
    assert a == b == old != c


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
    assert run.asked == [dict(source=None, head=None, mask_id=None, shift=None, **given)] * 2


def test_fill(run, net, monkeypatch):
    "What was typed reaches `navira.fill`; a text cannot control the terminal, and JSON is exact"
    import navira
    from navira.samples import Samples

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
        "prism:top_p=.7",
        "--set",
        "eta=.1",
        "--seed",
        7,
        "--budget",
        8,
    ]
    said = run(*args)
    ((*given, rule, budget, seed), _), = asked
    assert (given, budget, seed) == (["The man ___.", 2, 1, net], 8, 7)
    assert rule.draw == navira.policy("prism", top_p=0.7).draw
    assert (
        "Caf\xe9\\x1b[31m\\x9b2J\\r\\u202e\nend" in said and "3 forward passes run, 4 charged, seed 7, sample 0" in said
    )
    assert [json.loads(l)["text"] for l in run(*args, "--json").splitlines()] == [
        "Caf\xe9\x1b[31m\x9b2J\r\u202e\nend"
    ] * 2


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


def test_generate_beside(tmp_path, capsys):
    "Same prompt, seed and budget; the texts that are printed are the first policy's"
    p = tmp_path / "r.html"
    assert (
        typed(
            "generate",
            "--policy",
            "prism",
            "--beside",
            "navira",
            "--budget",
            8,
            "--length",
            24,
            "--prompt",
            "It was",
            "--seed",
            3,
            "-n",
            2,
            "--replay",
            p,
        )
        == 0
    )
    d = data_of(p.read_text())
    assert [(p["name"], p["T"], p["L"]) for p in d["panels"]] == [("prism", 8, 24), ("navira", 4, 24)] and d[
        "title"
    ] == "budget 8, seed 3"
    first, second = ["".join(d["vocab"][i] for i in list(states(p))[-1][0]) for p in d["panels"]]
    said = capsys.readouterr().out
    assert (
        first.startswith("It was")
        and second.startswith("It was")
        and first != second
        and first in said
        and second not in said
    )
    assert (
        typed("generate", "--budget", 8, "--replay", p, "--beside", "prsm") == 2
        and "did you mean 'prism'?" in capsys.readouterr().err
    )
    assert (
        typed("generate", "--policy", "prism", "--budget", 1, "--replay", p, "--beside", "navira") == 2
        and "budget=1" in capsys.readouterr().err
    )
    assert typed("generate", "--beside", "prism") == 2 and "expected --replay FILE" in capsys.readouterr().err


# --- other people's models


@pytest.fixture(scope="module")
def llada(pytestconfig):
    return pytestconfig.rootpath / "tests" / "golden" / "llada"


def said(capsys, *args):
    assert typed(*args) == 0
    return capsys.readouterr().out


def test_chat(capsys, llada):
    "A prompt is what a user says, and the answer is what is printed"
    import navira

    args = ["generate", "--model", llada, "--policy", "llada-low-confidence", "--budget", 8, "--max-new-tokens", 8]
    row = json.loads(said(capsys, *args, "--chat", "--prompt", "the house", "--json"))
    told = navira.chat(navira.load(llada), "the house", budget=8, max_new_tokens=8)
    assert row["prompt"] == "the house" and row["text"].strip() == told and "<|start|>" not in row["text"]
    shown = said(capsys, *args, "--chat", "--prompt", "the house", "--prompt", "the man")
    assert shown.count("--- llada-low-confidence") == 2


def test_infill(capsys, llada):
    row = json.loads(said(capsys, "generate", "--model", llada, "--policy", "mdlm", "--budget", 4, "--infill",
                          "the [MASK*3] house", "--eos", "keep", "--json"))
    assert row["text"].startswith("the") and row["text"].endswith(" house")
    row = json.loads(said(capsys, "generate", "--budget", 4, "--infill", "She [MASK*2] the door.", "--json"))
    assert row["text"].startswith("She") and row["text"].endswith(" the door.")


def test_new_tokens_in_blocks(run, net):
    import navira

    args = ["generate", "--budget", 12, "--policy", "remdm-conf", "--prompt", "It was", "--prompt", "She", "--json"]
    rows = [json.loads(l) for l in run(*args, "--max-new-tokens", 8, "--block-length", 4).splitlines()]
    same = navira.sample(net, "remdm-conf", 12, prompt=["It was", "She"], max_new_tokens=8, block_length=4)
    assert [r["text"] for r in rows] == same.texts and all(r["steps"] == 12 for r in rows)


@pytest.mark.parametrize("args, part", [
    (["--chat"], "expected what the user says"), (["--chat", "--prompt", "x", "--length", "9"], "--chat and --length"),
    (["--chat", "--prompt", "x", "--infill", "a [MASK*2]"], "--chat and --infill"),
    (["--infill", "no blank"], "no blank in it"), (["--infill", "The [MASK*12", "--prompt", "x"], "no blank in it"),
    (["--infill", "The <mask> of another"], "no blank in it"), (["--prompt", "x", "--chat"], "no chat template"),
    (["--eos", "never"], "eos"), (["--max-new-tokens", "4", "--length", "9"], "max_new_tokens=4"),
    (["--block-length", "0"], "block_length=0"), (["--block-length", "2", "--length", "24"], "12 blocks")])
def test_what_does_not_go_together(args, part, capsys):
    assert typed("generate", "--budget", 8, *args) == 2 and part in capsys.readouterr().err


@pytest.mark.parametrize("args", [["generate", "--length", 8, "--prompt", "the"], ["fill", "the ___ house"],
                                  ["generate", "--chat", "--prompt", "the", "--max-new-tokens", 8]], ids=str)
def test_without_a_named_policy_the_model_chooses(args, capsys, llada):
    "A policy that it can run, and its name is printed; a budget or setting that does not fit is still refused"
    args = [*args, "--model", llada, "--budget", 4]
    assert "--- llada-low-confidence, " in said(capsys, *args)
    assert json.loads(said(capsys, *args, "--json"))["policy"] == "llada-low-confidence"
    assert typed(*args, "--set", "tau=1") == 2 and "llada-low-confidence: hyper-" in capsys.readouterr().err
    assert typed(*args, "--policy", "navira-piecewise") == 2 and "needs a quality head" in capsys.readouterr().err


def test_the_mask_and_the_shift_reach_the_model(run, tmp_path):
    told, small = ["--mask-id", 5, "--aligned"], ["--policies", "backbone", "--budgets", 2, "-n", 1, "--show", 0]
    run("generate", "--budget", 2, "--length", 8, *told)
    run("fill", "a ___", "--budget", 2, *told[:2], "--shift")
    run("compare", *small, "--reference", "none", "--out", tmp_path, *told)
    run("info", *told[:2])
    assert [(a.get("mask_id"), a.get("shift")) for a in run.asked] == [(5, False), (5, True), (5, False), (5, None)]


def test_another_shift_writes_other_texts(capsys, pytestconfig):
    args = ["generate", "--model", pytestconfig.rootpath / "tests" / "golden" / "dream", "--budget", 4, "--length", 8,
            "--eos", "keep", "--json"]
    plain, same, other = (said(capsys, *args, *more) for more in ([], ["--shift"], ["--aligned"]))
    assert plain == same != other


def test_a_model_without_a_tokenizer(capsys, llada, tmp_path):
    "Its tokens are printed: there is nothing else to show"
    import shutil

    shutil.copytree(llada, tmp_path / "bare", ignore=shutil.ignore_patterns("*token*", "*.jinja"))
    args = ["generate", "--model", tmp_path / "bare", "--budget", 4, "--length", 8, "--eos", "keep"]
    row = json.loads(said(capsys, *args, "--json"))
    assert row["text"] is None and len(row["tokens"]) == 8 and str(row["tokens"]) in said(capsys, *args)
    assert typed(*args, "--replay", tmp_path / "r.html") == 2 and "has no tokenizer" in capsys.readouterr().err


def test_a_prompt_and_a_policy_need_no_option_names(run):
    little = ["--budget", 4, "--length", 24, "--json"]
    short = run("generate", "It was", "-p", "prism", *little)
    assert short == run("generate", "--prompt", "It was", "--policy", "prism", *little)


def test_what_is_finished_is_printed_when_a_run_is_stopped(net, monkeypatch, capsys):
    from navira.cli import main
    from navira.sampling import sample

    def stopped(net, rule, budget, numbers, *args, **kw):
        if numbers.start: raise KeyboardInterrupt
        return sample(net, rule, budget, numbers, *args, **kw)

    monkeypatch.setattr("navira.models.load.load", lambda *_, **kw: net)
    monkeypatch.setattr("navira.sampling.sample", stopped)
    with pytest.raises(SystemExit) as e: main("generate -n 40 --budget 2 --length 8 --json".split())
    printed = capsys.readouterr()
    assert e.value.code == 130 and printed.err.strip() == "navira: stopped with 32 of 40 texts"
    assert [json.loads(l)["sample"] for l in printed.out.splitlines()] == list(range(32))


def test_many_texts_are_those_of_one_call(run, net):
    from navira import sample

    printed = run(*"generate -n 34 --policy prism --budget 4 --length 8 --json".split())
    rows = [json.loads(l) for l in printed.splitlines()]
    assert [r["sample"] for r in rows] == list(range(34))
    assert [r["tokens"] for r in rows] == sample(net, "prism", 4, 34, length=8).tokens.tolist()


@pytest.mark.parametrize("prompt, warned", [("Привет, как дела?", "pieces"), ("It was a dark night", "")])
def test_a_prompt_in_letters_that_the_model_never_saw_is_told(prompt, warned, net, monkeypatch, capsys):
    monkeypatch.setattr("navira.models.load.load", lambda *_, **kw: net)
    assert typed("generate", prompt, "--budget", 2, "--length", 64) == 0
    said = capsys.readouterr().err
    assert warned in said and bool(said) == bool(warned)
