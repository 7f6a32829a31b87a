"""The speed of sampling: ours, the literal algorithm and the floor, in one run. What is measured, and how, is notebook 15's.

    python benchmarks/sampling.py                                        # everything, into benchmarks/results/cpu.json
    python benchmarks/sampling.py --shapes embedded --policies prism --rounds 1 --out try.json
    python benchmarks/sampling.py --device cuda --dtype bfloat16         # into benchmarks/results/cuda-bfloat16.json
    python benchmarks/sampling.py --shapes vocabulary --others FILE.py --out benchmarks/results/vocabulary.json

Stopped, it goes on where it was. To measure again, give another file, or remove the old one.
"""  # noqa: E501

from functools import partial
from pathlib import Path
from typing import Annotated, Optional
import typer
from navira.cli.app import _KEPT, _malloc, main, out


def listed(names: str) -> list[str]:
    return [n.strip() for n in names.split(",")]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(help=__doc__.split("\n")[0])
def run(
    shapes: Annotated[
        str, typer.Option(help="Comma-separated: embedded, mdlm-owt, scaling, vocabulary.")
    ] = "embedded,mdlm-owt,scaling",
    policies: Annotated[str, typer.Option(help="Comma-separated; 'all' for the seven.")] = "all",
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16 (autocast).")] = "float32",
    rows: Annotated[Optional[int], typer.Option(min=1, help="Texts at a time; each shape's own if not given.")] = None,
    others: Annotated[
        Optional[Path], typer.Option(help="For vocabulary: a Python file with `samplers`, timed beside ours.")
    ] = None,
    path: Annotated[Optional[Path], typer.Option("--out", help="File of results.")] = None,
) -> None:
    from navira.experiments.literal import POLICIES
    from navira.experiments.speed import Bench
    from navira.experiments.benchmark import benchmark, tables
    from navira.base.tables import terminal

    b = Bench(rounds, device, dtype, rows, partial(_malloc, _KEPT), others)
    path = path or Path(__file__).parent / "results" / ("-".join([device] + [dtype] * (dtype != "float32")) + ".json")
    found = benchmark(
        path,
        b,
        listed(shapes),
        POLICIES if policies == "all" else listed(policies),
        lambda line: print(line, flush=True),
    )
    for t in tables(found):
        out.print(terminal(t))


if __name__ == "__main__":  # children are started anew, and import this file
    main(program=app)  # as `navira`: keeps the memory it has, and says a mistake in one line
