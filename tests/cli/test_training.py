"""`navira train`, `finetune` and `critic`: their settings, and a run that is stopped."""
import json, re, shlex, signal

import pytest

from navira.models.critic import Critic
from navira.models.load import load
from helpers.cli import foreign, refused, said  # noqa: F401
from helpers.training import home, losses, trained  # noqa: F401

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
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case, foreign, capsys, monkeypatch):
    refused(MISTAKES[case], foreign, capsys, monkeypatch)


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


def test_the_command(home, tmp_path, trained, capsys):
    "`navira critic` with a settings file, flags over it; a mistake is one line and exit code 2."
    from navira.cli.app import main
    (tmp_path / 'c.toml').write_text('steps = 4\nblocks = 1\nbatch_size = 4\neval_sequences = 16\nprecision = "no"\n')
    args = [
        'critic', str(tmp_path / 'c.toml'), '--data', str(home), '--model', str(trained / 'model'),
        '--out', str(tmp_path / 'run'), '--steps', '3', '--set', 'weight=1/t',
    ]
    with pytest.raises(SystemExit) as e: main(args)
    assert e.value.code in (0, None) and 'critic: ' in capsys.readouterr().out and len(losses(tmp_path / 'run')) == 1
    assert json.loads((tmp_path / 'run' / 'run.json').read_text())['weight'] == '1/t'
    assert Critic.load(tmp_path / 'run' / 'critic').length == 16
    mistakes = [
        (['--set', 'weigt=1/t'], "did you mean 'weight'?"),
        (['--steps', '0'], 'steps=0'),
        (['--data', str(home) + 'x', '--out', str(tmp_path / 'other')], 'did you mean'),
        (['--model', str(tmp_path / 'mo')], 'not found'),
    ]
    for more, expected in mistakes:
        with pytest.raises(SystemExit) as e: main(args + more)
        printed = capsys.readouterr()
        assert e.value.code == 2 and expected in printed.err and len(printed.err.strip().splitlines()) == 1, printed


@pytest.mark.parametrize("lora", [None, 2], ids=["of MDLM's layout", "an adapter"])
def test_a_fine_tuned_model_says_how_it_is_used(lora, home, trained, tmp_path, pytestconfig, capsys, monkeypatch):
    "The command that is printed runs as it stands"
    # another test may have imported the module while `load` was a stand-in
    monkeypatch.setattr("navira.training.finetuning.load", load)
    base = trained / "model" if lora is None else pytestconfig.rootpath / "tests" / "golden" / "llada"
    small = [] if lora is None else ["--lora", str(lora), "--set", "length=16", "--set", "gradient_checkpointing=true"]
    args = ["finetune", "--data", str(home), "--model", str(base), "--out", str(tmp_path / "my run"), *small,
            "--head-steps", "1", "--joint-steps", "1", "--batch-size", "4", "--set", "eval_sequences=4",
            "--set", "final_sequences=4"]
    code, printed = said(capsys, *args)
    assert code in (0, None), printed
    command = shlex.split(re.search("use it: navira (.*)", printed.out)[1])
    assert ("--head" in command) == (lora is not None)
    code, printed = said(capsys, *command, "--budget", "4", "--length", "8")
    assert code in (0, None) and "--- remdm-cap:top_p=.5, " in printed.out, printed
