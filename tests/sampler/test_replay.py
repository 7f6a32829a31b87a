"The trace and its replay: the page says what the trace says, whatever the tokens hold."

import html, re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from navira.sampler.replay import replay
from helpers.replay import data_of, decode, mask_id, random_trace, rebuilt

def page_of(*args, **kw):
    return replay(*args, **kw).html


sizes = dict(
    T=st.integers(1, 12),
    n=st.integers(1, 3),
    L=st.integers(1, 24),
    seed=st.integers(0, 99),
    odd=st.booleans(),
)


def alike(T, tr, seed, **kw):
    "A trace of T steps that begins as `tr` does."
    other = random_trace(T, tr.n, tr.L, seed, **kw)
    x = torch.where(tr.fixed, tr.x[0], torch.where(other.fixed, mask_id, other.x)).int()
    free = ~tr.fixed & ~other.fixed
    return replace(
        other,
        x=x,
        remasked=other.remasked & ~tr.fixed,
        unmasked=other.unmasked & free,
        fixed=tr.fixed,
    )


@settings(max_examples=40, deadline=None)
@given(U=st.integers(1, 12), **sizes)
def test_changes_rebuild_every_state_of_both_runs(U, T, n, L, seed, odd):
    a = random_trace(T, n, L, seed, odd)
    b = alike(U, a, seed + 1, ancestral=odd)
    for row in range(n):
        rebuilt(data_of(page_of(a, decode, row=row)), [a], row)
        d = data_of(page_of(a, decode, row=row, other=b, names=('one', 'two')))
        rebuilt(d, [a, b], row)
        assert [p['name'] for p in d['panels']] == ['one', 'two'] and 0 <= d['start'] <= max(T, U)
        # it opens where most is remasked, by the second run where the first remasks nothing
        calm = replace(a, remasked=torch.zeros_like(a.remasked))
        assert data_of(replay(calm, decode, other=b).html)['start'] == (
            data_of(replay(b, decode, other=calm).html)['start']
        )


def test_hostile_tokens_never_stand_raw_in_the_page():
    tr, plain = random_trace(20, 1, 64, seed=3), random_trace(20, 1, 64, seed=3, V=1)
    title = '</title><script>alert(2)</script>\u202e'
    clean = page_of(plain, lambda ids: 'x', title='x')
    both = dict(names=('</h2><script>alert(3)</script>', '\u202e"'), title='x')
    page = page_of(tr, decode, title=title)
    for page in (page, page_of(tr, decode, other=alike(9, tr, 4), **both)):
        assert not set(page) - set(clean) - set(map(chr, range(128)))
        for bad in ('<script>alert', '<img', '\u202e', '\u200f', '\u2028', '\x00'):
            assert bad not in page
        for tag in ('</script', '<script', '<!--'):
            assert page.count(tag) == clean.count(tag)
    assert data_of(page_of(tr, decode, title=title))['title'] == title


def test_a_page_loads_nothing_and_runs_in_a_frame_of_its_own():
    page = replay(random_trace(3, 1, 8), decode)
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?:""", page.html)
    assert "default-src 'none'" in page.html and 'innerHTML' not in page.html
    frame = page._repr_html_()
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == page.html
    assert 'sandbox="allow-scripts"' in frame and frame.count('<') == 2


def test_runs_that_do_not_belong_together_are_refused():
    tr = random_trace(3, 2, 8)
    moved = replace(tr, x=tr.x.clone().index_fill_(2, torch.tensor(4), 3))
    for sentence, kw in (
        ('row=2.*0 to 1', dict(row=2)),
        ('other: its trace begins otherwise', dict(other=random_trace(3, 2, 9))),
        ('other: its trace begins otherwise', dict(other=replace(tr, mask_id=99))),
        ('other: its trace begins otherwise', dict(other=moved)),
    ):
        with pytest.raises(ValueError, match=sentence):
            page_of(tr, decode, **kw)


# --- in a browser


@pytest.fixture
def visit(browser):
    "Opens the page of a file; in the end nothing was logged, failed or asked."
    bad, open_ = [], []

    def go(path, step='', **kw):
        tab = browser.new_page(**dict(viewport=dict(width=1200, height=900)) | kw)
        for event in ('console', 'pageerror', 'dialog'):
            tab.on(event, lambda e: bad.append(str(e)))
        tab.on('request', lambda r: r.url == path.as_uri() or bad.append(r.url))
        tab.goto(path.as_uri() + step)
        open_.append(tab)
        return tab

    yield go
    for tab in open_:
        tab.close()
    assert not bad


def steps_of(tab):
    return tab.evaluate('replay.panels.map(p => p.step)')


def shown(tr, k):
    "Kind of every token after k steps"
    x, out, new = (
        tr.x[k, 0] == mask_id,
        tr.remasked[k - 1, 0] & (k > 0),
        tr.unmasked[k - 1, 0] & (k > 0),
    )
    kind = lambda p: (
        'prompt'
        if tr.fixed[0, p]
        else 'out'
        if out[p] and x[p]
        else 'mask'
        if x[p]
        else 'redo'
        if out[p] and new[p]
        else 'new'
        if new[p]
        else 'kept'
    )
    return [kind(p) for p in range(tr.L)]


def read(tab):
    return [
        re.findall(r'class="tok (\w+)', h)
        for h in tab.evaluate('replay.panels.map(p => p.text.innerHTML)')
    ]


def test_each_token_has_its_kind(visit, tmp_path):
    "At a step in the middle, and back and forth; hostile text stays text everywhere."
    a = random_trace(20, 1, 300, seed=3)  # more than one block
    b = alike(7, a, 5)
    traces = [a, b]
    page = replay(
        a,
        decode,
        tmp_path / 'r.html',
        title='<b>t</b>\u202e',
        other=b, names=('<i>a</i>', '"'),
    )
    tab = visit(page, '#13')
    for k in (13, 14, 2, 20, 0, 19):
        if k != 13:
            tab.evaluate('k => { replay.go(k); for (const p of replay.panels) p.rest() }', k)
        steps = [k * t.T // 20 for t in traces]
        assert steps_of(tab) == steps and read(tab) == [shown(t, i) for t, i in zip(traces, steps)]
        assert all(
            tab.evaluate('([j, k]) => replay.panels[j].tokens(k)', [j, i]).count(-1)
            == (t.x[i, 0] == mask_id).sum()
            for j, (t, i) in enumerate(zip(traces, steps))
        )
    body = tab.inner_html('main')
    assert (
        '<script' not in body
        and '<img' not in body
        and not set(body) & set('\u202e\u202c\u200f\x00')
    )
    assert (
        '</script><script>alert(1)</script>' in tab.inner_text('.text >> nth=0')
        and tab.inner_text('#title') == '<b>t</b>[U+202E]'
    )
    assert tab.locator('h2:visible').all_inner_texts() == ['<i>a</i>', '"']
