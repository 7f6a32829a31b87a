"""`navira sweep`, `evaluate`, `report` and `judge`: what they refuse, and how much they print."""
import pytest

from helpers.cli import net, run  # noqa: F401
from toys import small_lm


def test_evaluate_without_a_reference(tmp_path, capsys):
    "What needs a reference is left out in a sentence; asked for by name it is refused"
    from navira.experiments.old_sweep import read_sweep
    from navira.experiments.old_run import run
    from navira.cli.app import main

    grid = dict(
        budgets=[4], n=2, features=4, metrics=["entropy", "perplexity"], device="cpu", entries=[dict(policy="backbone")]
    )
    store = run(read_sweep(grid), tmp_path / "store", small_lm(seed=3))
    with pytest.raises(SystemExit) as e: main(["evaluate", str(store.folder), "--reference", "none"])
    warned = "navira: warning: perplexity, features, mauve: not measured, since the reference is 'none'"
    assert warned in capsys.readouterr().err.splitlines()
    assert not e.value.code and [p.name.split("-")[1] for p in (store.folder / "metrics").glob("*")] == [
        "entropy.parquet"
    ]
    capsys.readouterr()
    with pytest.raises(SystemExit) as e:
        main(["evaluate", str(store.folder), "--reference", "none", "--metrics", "perplexity,entropy"])
    assert e.value.code == 2 and "reference 'none': perplexity cannot be measured" in capsys.readouterr().err


def test_a_report_of_too_few_texts_says_so(tmp_path, capsys):
    from navira.experiments.old_sweep import read_sweep
    from navira.experiments.old_run import run
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
    import navira.experiments.old_run as ex_run
    from navira.experiments.old_sweep import read_sweep
    from navira.experiments.measure import evaluate_store
    from navira.cli.compare import out

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
