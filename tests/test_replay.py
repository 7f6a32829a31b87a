"""The trace and its replay: the page says what the trace says, whatever the tokens hold."""
import base64, html, re, runpy, statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.replay import Trace, replay, replay_html
from navira.sampling import Samples
from navira.step_figure import draw_step
from helpers.replay import data_of, decode, hostile, mask_id, random_trace, states

def alike(T, tr, seed, **kw):
    "A trace of T steps that begins as `tr` does"
    other = random_trace(T, tr.n, tr.L, seed, **kw)
    x = torch.where(tr.fixed, tr.x[0], torch.where(other.fixed, mask_id, other.x)).int()
    return replace(
        other,
        x=x,
        remasked=other.remasked & ~tr.fixed,
        unmasked=other.unmasked & ~tr.fixed & ~other.fixed,
        fixed=tr.fixed,
    )


@settings(max_examples=30, deadline=None)
@given(T=st.integers(1, 12), n=st.integers(1, 3), L=st.integers(1, 24), seed=st.integers(0, 99), odd=st.booleans())
def test_changes_rebuild_every_state(T, n, L, seed, odd):
    tr = random_trace(T, n, L, seed, odd)
    for row in range(n):
        rebuilt(data_of(replay_html(tr, decode, row=row)), [tr], row)


def rebuilt(d, traces, row):
    "Does each panel say what its trace says?"
    back = {v: i for i, v in enumerate(hostile)}
    assert len(d["panels"]) == len(traces)
    for panel, tr in zip(d["panels"], traces):
        seen = list(states(panel))
        assert len(seen) == tr.T + 1
        for k, (x, s) in enumerate(seen):
            assert [mask_id if i < 0 else back[d["vocab"][i]] for i in x] == tr.x[k, row].tolist()
            if k:
                flags = lambda name: [p for p, on in enumerate(getattr(tr, name)[k - 1, row].tolist()) if on]
                assert s.get("r", []) == flags("remasked") and s.get("v", []) == flags("unmasked")


@settings(max_examples=30, deadline=None)
@given(
    T=st.integers(1, 12),
    U=st.integers(1, 12),
    n=st.integers(1, 3),
    L=st.integers(1, 24),
    seed=st.integers(0, 99),
    odd=st.booleans(),
)
def test_two_panels_rebuild_both(T, U, n, L, seed, odd):
    a = random_trace(T, n, L, seed, odd)
    b = alike(U, a, seed + 1, ancestral=odd)
    for row in range(n):
        d = data_of(replay_html(a, decode, row=row, beside=b, names=("one", "two")))
        rebuilt(d, [a, b], row)
        assert [p["name"] for p in d["panels"]] == ["one", "two"] and 0 <= d["start"] <= max(T, U)


def test_opens_where_most_is_taken_back():
    "Step i of T is over at tick ceil(i N / T), whichever of the two it is a step of"
    tr = random_trace(12, 1, 24, seed=1)

    def quiet(t, **busy):
        return replace(
            t, remasked=torch.zeros_like(t.remasked).index_fill_(0, torch.tensor(list(busy.values()), dtype=int), True)
        )

    short = alike(5, tr, 2)
    for a, b, want in (
        (quiet(tr, i=3), quiet(short), 4),
        (quiet(tr), quiet(short, i=1), 5),
        (quiet(short, i=2), quiet(tr), 8),
        (quiet(tr), quiet(short), 12),
        (quiet(tr), quiet(short, i=4), 12),
    ):
        assert data_of(replay_html(a, decode, beside=b))["start"] == want


@settings(max_examples=20, deadline=None)
@given(T=st.integers(1, 8), L=st.integers(1, 24), seed=st.integers(0, 99))
def test_changes_undo(T, L, seed):
    "Going back from the last state by undoing each change meets every earlier state: the changes name every position that changed"  # noqa: E501
    tr = random_trace(T, 1, L, seed, True)
    d = data_of(replay_html(tr, decode))
    seen = list(states(d["panels"][0]))
    x = list(seen[-1][0])
    for k in range(T, 0, -1):
        s = seen[k][1]
        for p in {*s.get("r", []), *s.get("v", []), *(p for p, _ in s.get("c", []))}:
            x[p] = seen[k - 1][0][p]
        assert x == seen[k - 1][0]


def test_hostile_tokens_never_raw():
    tr = random_trace(20, 1, 64, seed=3)
    plain = random_trace(20, 1, 64, seed=3, V=1)
    page = replay_html(tr, decode, title="</title><script>alert(2)</script>\u202e")
    clean = replay_html(plain, lambda ids: "x", title="x")
    both = dict(names=("</h2><script>alert(3)</script>", '\u202e"'), title="x")
    unharmed(page, clean)
    unharmed(replay_html(tr, decode, beside=alike(9, tr, 4), **both), clean)
    free = replace(tr, x=torch.full_like(tr.x, mask_id), fixed=torch.zeros_like(tr.fixed))
    unharmed(
        replay_html(free, decode, beside=replace(tr, x=torch.cat([free.x[:1], tr.x[1:]])), **both), clean
    )  # hostile words in the second alone
    d = data_of(page)
    assert d["title"] == "</title><script>alert(2)</script>\u202e" and set(d["vocab"]) <= set(hostile)


def unharmed(page, clean):
    assert page.isascii() or not set(page) - set(clean) - set(map(chr, range(128)))
    for bad in ("<script>alert", "<img", "\u202e", "\u200f", "\u2028", "\x00"):
        assert bad not in page
    assert (
        page.count("</script") == clean.count("</script")
        and page.count("<script") == clean.count("<script")
        and page.count("<!--") == clean.count("<!--")
    )


def test_nothing_is_loaded():
    page = replay_html(random_trace(3, 1, 8), decode)
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?:""", page)
    assert "default-src 'none'" in page and "innerHTML" not in page


def test_frame_in_a_notebook():
    out = replay(random_trace(3, 1, 8), decode)._repr_html_()
    src = re.search(r'srcdoc="([^"]*)"', out).group(1)
    assert html.unescape(src) == replay_html(random_trace(3, 1, 8), decode)
    assert 'sandbox="allow-scripts"' in out and out.count("<") == 2


def test_scores_and_temperature():
    tr = random_trace(6, 2, 16, seed=1)
    d = data_of(replay_html(tr, decode, row=1))["panels"][0]
    lo, hi, T = d["score"]["lo"], d["score"]["hi"], 6
    for i in range(T):
        q = torch.tensor(list(base64.b64decode(d["score"]["rows"][i])))
        want = tr.score[i, 1][tr.x[i, 1] != mask_id]  # a mask has no quality
        assert torch.equal(q == 255, want.isnan())
        assert ((lo + (hi - lo) * q / 254 - want).abs()[q < 255] <= (hi - lo) / 254).all()
    assert d["tau"] == pytest.approx(tr.tau[:, 1].tolist(), rel=1e-3)


def test_values_without_a_number():
    tr = random_trace(3, 1, 8)
    tr = Trace(
        tr.x,
        tr.remasked,
        tr.unmasked,
        torch.full_like(tr.score, torch.nan),
        torch.tensor([[torch.nan], [torch.inf], [0.0]]),
        mask_id,
        tr.fixed,
    )
    d = data_of(replay_html(tr, decode))["panels"][0]
    assert d["tau"] == [None, "inf", 0.0] and d["score"]["rows"] == [""] * 3


def test_size():
    tr = random_trace(128, 1, 128)
    full = Trace(tr.x, tr.remasked, tr.unmasked, torch.randn(128, 1, 128), tr.tau, mask_id, tr.fixed)
    assert len(replay_html(full, decode).encode()) < 300_000


def test_file(tmp_path):
    tr = random_trace(3, 2, 8)
    p = replay(tr, decode, tmp_path / "a" / "b" / "r.html", row=1, title="two")
    assert p.read_text(encoding="utf-8") == replay_html(tr, decode, row=1, title="two")


def test_unwritable(tmp_path):
    (tmp_path / "file").write_text("")
    for p in (tmp_path / "file" / "r.html", tmp_path / "file" / "sub" / "r.html", tmp_path):
        with pytest.raises(OSError, match=re.escape(str(p))):
            replay(random_trace(1, 1, 4), decode, p)


def test_user_errors():
    tr = random_trace(3, 2, 8)
    for row in (-1, 2):
        with pytest.raises(ValueError, match=f"row={row}.*0 to 1"):
            replay_html(tr, decode, row=row)
    with pytest.raises(ValueError, match="start=4.*0 to 3"):
        replay_html(tr, decode, start=4)
    beside = lambda b: replay_html(tr, decode, beside=b)
    with pytest.raises(ValueError, match="beside: its trace has L=9, expected 8"):
        beside(random_trace(3, 2, 9))
    with pytest.raises(ValueError, match=f"beside: its trace has mask_id=99, expected {mask_id}"):
        beside(replace(tr, mask_id=99))
    with pytest.raises(ValueError, match="row=0|row=1: the trace has rows 0 to 0"):
        replay_html(tr, decode, row=1, beside=random_trace(3, 1, 8))
    with pytest.raises(ValueError, match="beside: position 4 begins as token 3, expected"):
        beside(replace(tr, x=tr.x.clone().index_fill_(2, torch.tensor(4), 3)))
    with pytest.raises(ValueError, match="trace.tau has shape"):
        Trace(tr.x, tr.remasked, tr.unmasked, tr.score, tr.tau[:2], mask_id, tr.fixed)
    quiet = Trace(tr.x, torch.zeros_like(tr.remasked), tr.unmasked, tr.score, tr.tau, mask_id, tr.fixed)
    with pytest.raises(ValueError, match="remasks nothing"):
        draw_step(quiet, 0, 0, decode)
    with pytest.raises(ValueError, match="i=3.*0 to 2"):
        draw_step(tr, 0, 3, decode)


def test_samples_side_by_side():
    "The same sample by its number, whatever the batch that each was in; samples of another seed, or without a trace, are refused"  # noqa: E501
    tr = random_trace(4, 3, 8)
    made = lambda t, **kw: Samples(
        t.x[-1].long(),
        torch.zeros(t.n),
        t.T,
        4,
        0.0,
        type("T", (), dict(decode=staticmethod(lambda ids, **_: decode(ids)))),
        t,
        **dict(policy="prism", seed=1) | kw,
    )
    later = Trace(
        tr.x[:, 1:], tr.remasked[:, 1:], tr.unmasked[:, 1:], tr.score[:, 1:], tr.tau[:, 1:], mask_id, tr.fixed[1:]
    )
    a, b = made(tr, first=5), made(later, first=6, policy="")
    d = data_of(a.replay(row=2, beside=b).html)
    rebuilt(d, [tr, tr], 2)
    assert [p["name"] for p in d["panels"]] == ["prism", "second"]
    assert [p["name"] for p in data_of(a.replay(row=2, beside=b, names=("x", "y")).html)["panels"]] == ["x", "y"]
    for row, other, said in (
        (0, b, "beside: it has samples 6 to 7, expected sample 5"),
        (3, b, "row=3: the trace has rows 0 to 2"),
        (1, replace(b, seed=2), "beside: it was sampled with seed=2, expected seed=1"),
        (1, replace(b, trace=None), "beside: no trace was recorded"),
    ):
        with pytest.raises(ValueError, match=said):
            a.replay(row=row, beside=other)
    with pytest.raises(ValueError, match="^no trace was recorded"):
        replace(a, trace=None).replay(beside=b)


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def visit(browser):
    "Opens a page of a file; when the test is over, nothing was logged, nothing failed and nobody was asked anything"
    bad, open_ = [], []

    def go(path, step="", **kw):
        tab = browser.new_page(**dict(viewport=dict(width=1200, height=900)) | kw)
        for event in ("console", "pageerror", "dialog"):
            tab.on(event, lambda e: bad.append(str(e)))
        tab.on("request", lambda r: r.url == path.as_uri() or bad.append(r.url))
        tab.goto(path.as_uri() + step)
        open_.append(tab)
        return tab

    yield go
    for tab in open_:
        tab.close()
    assert not bad


def until(tab, said):
    "Waits for it to be true. Playwright's own way needs `eval`, which the page forbids"
    for _ in range(1000):
        if tab.evaluate(said):
            return
        tab.wait_for_timeout(10)
    raise TimeoutError(said)


def steps_of(tab):
    return tab.evaluate("replay.panels.map(p => p.step)")


def shown(tr, k):
    "Kind of every token after k steps"
    x, out, new = tr.x[k, 0] == mask_id, tr.remasked[k - 1, 0] & (k > 0), tr.unmasked[k - 1, 0] & (k > 0)
    kind = lambda p: (
        "prompt"
        if tr.fixed[0, p]
        else "out"
        if out[p] and x[p]
        else "mask"
        if x[p]
        else "redo"
        if out[p] and new[p]
        else "new"
        if new[p]
        else "kept"
    )
    return [kind(p) for p in range(tr.L)]


def read(tab):
    return [re.findall(r'class="tok (\w+)', h) for h in tab.evaluate("replay.panels.map(p => p.text.innerHTML)")]


@pytest.mark.parametrize("panels", [1, 2])
def test_each_token_has_its_kind(panels, visit, tmp_path):
    "At a step in the middle, and back and forth at random; hostile text as text, in token, title and name"
    a = random_trace(20, 1, 300, seed=3)  # more than one block
    b = alike(7, a, 5)
    traces = [a, b][:panels]
    page = replay(
        a,
        decode,
        tmp_path / "r.html",
        title="<b>t</b>\u202e",
        **dict(beside=b, names=("<i>a</i>", '"')) if panels == 2 else {},
    )
    tab = visit(page, "#13")
    for k in (13, 14, 2, 20, 0, 19):
        if k != 13:
            tab.evaluate("k => { replay.go(k); for (const p of replay.panels) p.rest() }", k)
        steps = [k * t.T // 20 for t in traces]
        assert steps_of(tab) == steps and read(tab) == [shown(t, i) for t, i in zip(traces, steps)]
        assert all(
            tab.evaluate("([j, k]) => replay.panels[j].tokens(k)", [j, i]).count(-1) == (t.x[i, 0] == mask_id).sum()
            for j, (t, i) in enumerate(zip(traces, steps))
        )
    body = tab.inner_html("main")
    assert "<script" not in body and "<img" not in body and not set(body) & set("\u202e\u202c\u200f\x00")
    assert (
        "</script><script>alert(1)</script>" in tab.inner_text(".text >> nth=0")
        and tab.inner_text("#title") == "<b>t</b>[U+202E]"
    )
    assert (
        tab.locator(".panel").count() == panels
        and tab.locator("h2:visible").all_inner_texts() == ["<i>a</i>", '"'][: 2 * (panels - 1)]
    )


def test_controls(visit, tmp_path):
    "Slider, buttons, keys and strips move both runs, and each ends at its own T"
    a = random_trace(20, 1, 40, seed=3)
    b = alike(8, a, 5)
    tab = visit(replay(a, decode, tmp_path / "r.html", start=5, beside=b))
    at = lambda: tab.evaluate("replay.at")
    assert (at(), steps_of(tab)) == (5, [5, 2])
    tab.click("#next")
    assert steps_of(tab) == [6, 2]
    tab.click("#prev")
    tab.click("#prev")
    assert steps_of(tab) == [4, 1]
    tab.keyboard.press("End")
    assert steps_of(tab) == [20, 8] and tab.is_disabled("#next") and not tab.is_disabled("#prev")
    tab.keyboard.press("Home")
    assert steps_of(tab) == [0, 0] and tab.is_disabled("#prev")
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowLeft")
    assert steps_of(tab) == [2, 0]
    tab.fill("#slider", "15")
    assert steps_of(tab) == [15, 6]
    assert (
        tab.get_attribute("#slider", "aria-valuetext")
        == f"first, step 15 of 20, {(a.x[15, 0] != mask_id).sum() - a.fixed.sum()} committed; second, step 6 of 8, {(b.x[6, 0] != mask_id).sum() - b.fixed.sum()} committed"  # noqa: E501
    )
    jobs = sorted({-(-(i + 1) * 20 // t.T) for t in (a, b) for i, on in enumerate(t.remasked[:, 0].any(1)) if on})
    tab.keyboard.press("Home")
    for k in jobs:
        tab.keyboard.press("r")
        assert at() == k
    tab.click("#jump")
    assert at() == jobs[0]
    for j, strip in enumerate(tab.locator(".strip").all()):
        box = strip.bounding_box()
        tab.mouse.click(box["x"] + 0.99 * box["width"], box["y"] + 20)
        assert steps_of(tab)[j] == (20, 8)[j]
        tab.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 20)
        assert steps_of(tab) == [[9, 3], [10, 4]][j]


def test_play(visit, tmp_path):
    "It plays to the end and stops, pauses at a key, starts over from the end, and stops when a hand is laid on"
    a = random_trace(20, 1, 24, seed=3)
    tab = visit(replay(a, decode, tmp_path / "r.html", start=17, beside=alike(8, a, 5)))
    tab.click("#play")
    assert tab.inner_text("#play") == "Pause"
    until(tab, 'replay.at === 20 && document.getElementById("play").textContent === "Play"')
    assert steps_of(tab) == [20, 8]
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press(" ")
    until(tab, "replay.at === 2")
    assert tab.inner_text("#play") == "Pause"
    tab.keyboard.press(" ")
    assert tab.inner_text("#play") == "Play"
    k = tab.evaluate("replay.at")
    tab.wait_for_timeout(1200)
    assert tab.evaluate("replay.at") == k
    tab.keyboard.press(" ")
    tab.keyboard.press("ArrowLeft")
    assert tab.inner_text("#play") == "Play"


def test_less_motion(visit, tmp_path):
    "A long run goes by in at most sixty pictures where less motion is asked for"
    tab = visit(replay(random_trace(200, 1, 8), decode, tmp_path / "r.html", start=0), reduced_motion="reduce")
    tab.click("#play")
    until(tab, "replay.at > 0")
    assert tab.evaluate("replay.at") % 4 == 0


def test_what_a_token_tells(visit, tmp_path):
    "Hover, tap and arrow keys: the same position in both, with its quality and the temperature"
    a = random_trace(20, 1, 24, seed=3)
    b = alike(10, a, 5)
    words = ["w%d" % i for i in range(mask_id)]
    tab = visit(replay(a, lambda ids: " " + words[ids[0]], tmp_path / "r.html", start=16, beside=b), has_touch=True)
    p = next(
        p for p in range(24) if not a.score[15, 0, p].isnan() and a.x[15, 0, p] != mask_id and a.x[16, 0, p] != mask_id
    )

    def said(p):
        for line, t, i in zip(tab.locator(".detail").all_inner_texts(), (a, b), (16, 8)):
            assert (
                line.startswith(f"position {p}: ")
                and ("mask" if t.x[i, 0, p] == mask_id else "“ " + words[t.x[i, 0, p]] + "”") in line
                and f"τ {t.tau[i - 1, 0]:.4g}" in line
            )
            known = t.x[i - 1, 0, p] != mask_id and not t.score[i - 1, 0, p].isnan()
            assert (
                (m := re.search(r"before the step (-?[\d.]+) \(([\d.]+) %\)", line)) is not None
                if known
                else "before the step" not in line
            )
            if known:
                assert float(m[1]) == pytest.approx(t.score[i - 1, 0, p].item(), abs=0.1)
            assert f"remasked {t.remasked[:i, 0, p].sum()} time" in line

    tab.hover(f'[data-p="{p}"] >> nth=0')
    said(p)
    q = p - 1 if p else 1
    tab.tap(f'[data-p="{q}"] >> nth=1')
    said(q)
    tab.focus(".text >> nth=1")
    for key, q in (("ArrowDown", q + 1), ("ArrowDown", q + 2), ("ArrowUp", q + 1)):
        tab.keyboard.press(key)
        said(q)
    assert tab.locator(".tok.at").count() == 2


@pytest.mark.parametrize("panels", [1, 2])
def test_on_a_phone(panels, visit, tmp_path):
    "Nothing to scroll sideways, with a word as long as the screen too; two panels stand below each other, and side by side where there is room"  # noqa: E501
    a = random_trace(20, 1, 200, seed=3)
    long = lambda ids: "x" * 200 if ids[0] == 3 else decode(ids)
    page = replay(
        a,
        long,
        tmp_path / "r.html",
        title="y" * 99,
        **dict(beside=alike(9, a, 5), names=("z" * 99, "b")) if panels == 2 else {},
    )
    for width in (390, 1200):
        tab = visit(page, viewport=dict(width=width, height=844))
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        boxes = [p.bounding_box() for p in tab.locator(".panel").all()]
        assert len({b["x"] for b in boxes}) == (panels if width > 700 else 1)
        tops = [b.bounding_box()["y"] for b in tab.locator(".strip").all()]
        assert width < 700 or len(set(tops)) == 1


def test_a_scroll_shows_the_step(visit, tmp_path):
    "What was out of sight while the steps went by is up to date when it is seen"
    a = random_trace(20, 1, 2000, seed=3)
    tab = visit(replay(a, lambda ids: " word%d" % ids[0], tmp_path / "r.html", start=0))
    stale = tab.evaluate(
        "new Promise(r => setTimeout(() => { replay.go(12); r(replay.panels[0].text.lastChild.innerHTML) }, 200))"
    )
    assert set(re.findall(r'class="tok (\w+)', stale)) <= {"prompt", "mask"}
    tab.locator(".block").last.scroll_into_view_if_needed()
    until(tab, 'document.querySelector(".block:last-child .kept")')
    until(tab, f'document.querySelectorAll(".text .mask").length === {shown(a, 12).count("mask")}')
    assert read(tab) == [shown(a, 12)]


# --- at length -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_run(root):
    return runpy.run_path(str(root / "benchmarks" / "replay.py"))["runs"]()


def test_size_at_length(long_run):
    "1024 tokens x 512 steps, scores from the first step to the last, remasks in nearly every one: a file that can be mailed"  # noqa: E501
    a, b = long_run
    assert a.trace.T == b.trace.T == 512 and a.trace.L == 1024 and len(a.trace.x.unique()) > 2000
    held = a.trace.x[:-1] != a.trace.mask_id
    assert (~a.trace.score.isnan() == held)[1:].all() and a.trace.remasked.sum() > 2000
    assert len(a.replay().html) < 1_000_000 and len(a.replay(beside=b).html) < 2_000_000


def test_speed_at_length(long_run, visit, tmp_path, capsys):
    "The page of a long run opens and steps; how long a step takes is said, and measured in benchmarks/replay.py"
    a, b = long_run
    tab = visit(a.replay(tmp_path / "r.html", beside=b))
    times = tab.evaluate(
        """async () => { const ms = []; for (let k = 300; k < 320; k++) { const t = performance.now(); replay.go(k); document.body.offsetHeight; await new Promise(requestAnimationFrame); ms.push(performance.now() - t) } return ms }"""  # noqa: E501
    )
    assert steps_of(tab) == [319, 319] and len(times) == 20
    with capsys.disabled():
        print(f"\n1024 tokens x 512 steps, two policies: {statistics.median(times):.0f} ms a step")


def test_a_grid_is_drawn_as_a_grid(visit, tmp_path):
    "A cell for each token, on any width; exactly the contradictions are framed, step by step"
    import navira.peers  # noqa: F401
    from helpers.grids import four, novice
    from navira.sampling import sample
    from navira.tasks.sudoku import contradictions
    out = sample(novice(), 'remdm-cap', 6, n=2, seed=1, eta=.3, trace=True, progress=False)
    page = out.replay(tmp_path / 'grid.html')
    for width in (390, 1200):
        tab = visit(page, '#0', viewport=dict(width=width, height=900))
        boxes = [c.bounding_box() for c in tab.locator('.grid .tok').all()]
        assert len(boxes) == 16 and len({round(b['x']) for b in boxes}) == len({round(b['y']) for b in boxes}) == 4
        assert all(abs(b['width'] - b['height']) < 3 for b in boxes)
        assert tab.evaluate('document.documentElement.scrollWidth') <= width
        assert tab.locator('#wrong').is_visible()
        for i in range(7):
            tab.evaluate('k => { replay.go(k); for (const p of replay.panels) p.rest() }', i)
            marked = tab.evaluate("[...document.querySelectorAll('.grid .tok')].map(e => e.classList.contains('bad'))")
            assert marked == contradictions(four, out.trace.x[i, :1].numpy())[0].tolist()
