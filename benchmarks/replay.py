"""The replay of a long run: size of the file, time to load, time of a step in Chromium.

1024 tokens, 512 steps, one policy and two side by side:

    python benchmarks/replay.py
    python benchmarks/replay.py --length 2048 --steps 1024 --out pages     # keep the pages

A step is timed from one animation frame to the next after it, so it holds the script, style,
layout and paint. Needs `playwright` and a Chromium."""

import platform, shutil, statistics, tempfile
from pathlib import Path
from typing import Annotated, Optional
import torch, typer
from rich.console import Console
from rich.table import Table
import navira
from navira.sampling import Samples
from navira.sampler.replay import Trace

# noqa: E501
FLAGS = ('--no-sandbox --disable-gpu --disable-quic --no-first-run '
         '--disable-background-networking --disable-component-update --disable-sync').split()
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def run(length: int, steps: int, passes: int, words: int = 3000, eta: float = 0.01,
        seed: int = 0) -> Samples:
    # noqa: E501
    """A run without a network, for the page as good as one with: PRISM's counts from the first step
    to the last, qualities at random, words of the embedded tokenizer."""
    g, model = torch.Generator().manual_seed(seed), navira.load()
    known = torch.randperm(model.mask_id, generator=g)[:words].int()
    x, did = [torch.full((length,), model.mask_id, dtype=torch.int32)], []
    for i in range(steps):
        held, goal = x[-1] != model.mask_id, -(-length * (i + 1) // steps)
        score = torch.where(held, 3 * torch.randn(length, generator=g), torch.nan)
        k = int((held & (torch.rand(length, generator=g) < eta)).sum())
        if passes == 1:
            k = min(k, length - goal)  # the coupled step writes only where it saw a mask
        gone = torch.zeros_like(held).index_fill_(0, score.nan_to_num(torch.inf).argsort()[:k],
                                                  True)
        room = (~held | gone if passes == 2 else ~held).nonzero()[:, 0]
        new = torch.zeros_like(held).index_fill_(
            0, room[torch.randperm(len(room), generator=g)[: goal - int(held.sum()) + k]], True
        )
        x.append(
            torch.where(
                new, known[torch.randint(words, (length,), generator=g)],
                torch.where(gone, model.mask_id, x[-1])
            )
        )
        did.append((gone, new, score))
    gone, new, score = (torch.stack(a)[:, None] for a in zip(*did))
    tau = torch.linspace(0.05, 0.5, steps)[:, None] if passes == 2 else torch.full((steps, 1),
                                                                                   torch.nan)
    trace = Trace(
        torch.stack(x)[:, None], gone, new, score, tau, model.mask_id,
        torch.zeros(1, length, dtype=torch.bool)
    )
    return Samples(
        trace.x[-1].long(),
        torch.tensor([steps * passes]),
        steps,
        steps * passes,
        0.0,
        model.tokenizer,
        trace,
        ("one pass a step", "two passes a step")[passes - 1],
        seed,
    )


def runs(length: int = 1024, steps: int = 512) -> list[Samples]:
    return [run(length, steps, passes) for passes in (1, 2)]


TIMES = """async ([ks, shade]) => {
  const frame = () => new Promise(requestAnimationFrame), box = document.getElementById('shade'), ms = [];
  if (box.checked !== shade) box.click();
  await frame(); await frame();
  for (const k of ks) { await frame(); const t = performance.now(); replay.go(k); document.body.offsetHeight; await new Promise(r => requestAnimationFrame(() => setTimeout(r))); ms.push(performance.now() - t) }
  return ms }"""  # noqa: E501


def timed(browser, page: Path, steps: int) -> dict[str, list[float]]:  # ms
    "Load times, and step times of playing and of jumping about, without and with shades."
    found, jumps = (
        {"load": []},
        torch.randint(0, steps + 1, (200,), generator=torch.Generator().manual_seed(0)).tolist(),
    )
    for _ in range(5):
        tab = browser.new_page(viewport=dict(width=1400, height=900))
        tab.goto(page.as_uri(), wait_until="load")
        found["load"].append(
            tab.evaluate("new Promise(r => requestAnimationFrame(() => setTimeout(() => "
                         "r(performance.now()))))")
        )
        if len(found["load"]) < 5:
            tab.close()
    for shade in (False, True):
        for name, ks in (("play", list(range(steps + 1))), ("jump", jumps)):
            found[name + ", shaded" * shade] = tab.evaluate(TIMES, [ks, shade])
    tab.close()
    return found


@app.command(help=__doc__.split("\n")[0])
def measure(
    length: Annotated[int, typer.Option(min=1, help="Tokens.")] = 1024,
    steps: Annotated[int, typer.Option(min=1, help="Steps of either policy.")] = 512,
    folder: Annotated[Optional[Path],
                      typer.Option("--out", help="Keep the pages in this folder.")] = None,
) -> None:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)
    if path is None:
        raise FileNotFoundError("no Chromium here: expected chromium, chromium-browser or "
                                "google-chrome on the PATH")
    one, two = runs(length, steps)
    with tempfile.TemporaryDirectory() as tmp, sync_playwright() as p:
        browser, folder = p.chromium.launch(executable_path=path, args=FLAGS), folder or Path(tmp)
        t = Table(
            title=f"{length} tokens x {steps} steps, {len(one.trace.x[:, 0].unique())} words, {one.trace.remasked.sum()} and {two.trace.remasked.sum()} remasks; Chromium {browser.version}, {platform.machine()}, no GPU",  # noqa: E501
            title_justify="left",
        )
        for head in ("page", "MB", "load (ms)", "what", "median (ms)", "95 % (ms)", "worst (ms)"):
            t.add_column(head, justify="left" if head in ("page", "what") else "right")
        for name, page in (
            ("one", one.replay(folder / "one.html")),
            ("two", one.replay(folder / "two.html", other=two)),
        ):
            found = timed(browser, page, steps)
            load = statistics.median(found.pop("load"))
            for what, ms in found.items():
                t.add_row(
                    name,
                    f"{page.stat().st_size / 1e6:.2f}",
                    f"{load:.0f}",
                    what,
                    f"{statistics.median(ms):.1f}",
                    f"{statistics.quantiles(ms, n=20)[-1]:.1f}",
                    f"{max(ms):.1f}",
                )
        Console().print(t)


if __name__ == "__main__":
    app()
