"The trace and its replay: the page says what the trace says, whatever the tokens hold."
import html, re
from dataclasses import replace

import numpy as np
import pytest
import torch

from navira.sampler.replay import replay
from helpers.replay import data_of, decode, hostile, mask_id, trace

def test_it_opens_where_most_is_remasked():
    "By the second run where the first remasks nothing"
    a, b = trace(9, 1, 24), trace(7, 1, 24, seed=1)
    calm = replace(a, remasked=torch.zeros_like(a.remasked))
    first, second = (data_of(replay(one, decode, other=two).html)['start']
                     for one, two in ([calm, b], [b, calm]))
    assert first == second > 0

def test_hostile_tokens_never_stand_raw_in_the_page():
    "And the page loads nothing, in a frame of its own"
    tr = trace(20, 1, 64, seed=3)
    clean = replay(tr, lambda ids: 'x').html
    title = '</title><script>alert(2)</script>\u202e'
    both = dict(other=trace(9, 1, 64, seed=4), title=title,
                names=('</h2><script>alert(3)</script>', '\u202e"'))
    page = replay(tr, decode, **both)
    assert data_of(page.html)['title'] == title
    assert {*data_of(page.html)['vocab']} == {*hostile}
    assert not set(page.html) - set(clean) - set(map(chr, range(128)))
    for bad in '<script>alert', '<img', '\u202e', '\u200f', '\u2028', '\x00':
        assert bad not in page.html
    for tag in '</script', '<script', '<!--': assert page.html.count(tag) == clean.count(tag)
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?:""", clean)
    assert "default-src 'none'" in page.html and 'innerHTML' not in page.html
    frame = page._repr_html_()
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == page.html
    assert 'sandbox="allow-scripts"' in frame and frame.count('<') == 2

def test_runs_that_do_not_belong_together_are_refused():
    tr = trace(3, 2, 8)
    with pytest.raises(ValueError, match='row=2.*0 to 1'): replay(tr, decode, row=2)
    moved = tr.x.clone().index_fill_(2, torch.tensor(4), 3)
    for other in trace(3, 2, 9), replace(tr, mask_id=99), replace(tr, x=moved):
        with pytest.raises(ValueError, match='other: its trace begins otherwise'):
            replay(tr, decode, other=other)

# --- in a browser

def kinds(tr, k):
    "Of every token after k steps"
    x = tr.x[k, 0] == mask_id
    out, new = (a[k - 1, 0] & (k > 0) for a in (tr.remasked, tr.unmasked))
    return np.select([tr.fixed[0], out & x, x, out & new, new],
                     ['prompt', 'out', 'mask', 'redo', 'new'], 'kept').tolist()

def test_each_token_has_its_kind(browser, tmp_path):
    """At a step in the middle, and back and forth; hostile text stays text everywhere; nothing is
    logged, fails or is asked."""
    bad, a = [], trace(20, 1, 300, seed=3)  # more than one block
    traces = [a, trace(7, 1, 300, seed=5)]
    path = replay(a, decode, tmp_path / 'r.html', title='<b>t</b>\u202e', other=traces[1],
                  names=('<i>a</i>', '"'))
    tab = browser.new_page(viewport=dict(width=1200, height=900))
    for event in 'console', 'pageerror', 'dialog': tab.on(event, lambda e: bad.append(str(e)))
    tab.on('request', lambda r: r.url == path.as_uri() or bad.append(r.url))
    tab.goto(path.as_uri() + '#13')
    for k in (13, 14, 2, 20, 0, 19):
        tab.evaluate('k => { replay.go(k); for (const p of replay.panels) p.rest() }', k)
        steps = [k * t.T // 20 for t in traces]
        assert tab.evaluate('replay.panels.map(p => p.step)') == steps
        read = tab.evaluate('replay.panels.map(p => p.text.innerHTML)')
        for text, t, i in zip(read, traces, steps):
            assert re.findall(r'class="tok (\w+)', text) == kinds(t, i)
    body = tab.inner_html('main')
    assert '<script' not in body and '<img' not in body
    assert not set(body) & set('\u202e\u202c\u200f\x00')
    assert '</script><script>alert(1)</script>' in tab.inner_text('.text >> nth=0')
    assert tab.inner_text('#title') == '<b>t</b>[U+202E]'
    assert tab.locator('h2:visible').all_inner_texts() == ['<i>a</i>', '"']
    tab.close()
    assert not bad
