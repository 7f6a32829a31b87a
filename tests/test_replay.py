"""The trace and its replay: the page says what the trace says, whatever the tokens hold."""
import base64, html, json, re, shutil, subprocess
import pytest, torch
from hypothesis import given, settings, strategies as st
from navira.sampling import Trace, draw_step, replay, replay_html

hostile = ['</script><script>alert(1)</script>', '<!--', ']]>', '"', "'", '\\', '&amp;', '\u202eabc\u202c', '\u200f', '\u2028', '\x00',
           '<img src=x onerror=alert(1)>', '\ufffd', '\ud800', '\n', ' ', ' a', '__REPLAY_DATA__', '${x}', '\U0001f600']
mask_id = len(hostile)
def decode(ids): return ''.join(hostile[i] for i in ids)


def random_trace(T, n, L, seed=0, ancestral=False, V=mask_id):
    "Remasks and reveals at random; with `ancestral`, positions also change without a flag, which a policy of a user may do"
    g = torch.Generator().manual_seed(seed)
    rand = lambda *s: torch.rand(*s, generator=g)
    fixed = rand(n, L) < .1
    x = [torch.where(fixed, torch.randint(0, V, (n, L), generator=g), mask_id).int()]
    out, new, score = [], [], []
    for _ in range(T):
        r = (x[-1] != mask_id) & ~fixed & (rand(n, L) < .1)
        z = torch.where(r, mask_id, x[-1])
        v = (z == mask_id) & (rand(n, L) < .2)
        z = torch.where(v, torch.randint(0, V, (n, L), generator=g).int(), z)
        if ancestral: z = torch.where((rand(n, L) < .05) & ~fixed, torch.randint(0, V + 1, (n, L), generator=g).int(), z)
        score.append(torch.where(rand(n, L) < .5, torch.randn(n, L, generator=g) * 4, torch.nan))
        x.append(z.int()); out.append(r); new.append(v)
    return Trace(torch.stack(x), torch.stack(out), torch.stack(new), torch.stack(score), rand(T, n), mask_id, fixed)


def data_of(page):
    "The one JSON block of the page, read as a browser would: up to the first </script"
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script', page, re.S).group(1))


def states(d):
    "Replays the changes, as the page's script does"
    x = list(d['x0']); yield list(x), {}
    for s in d['steps']:
        for p in s.get('r', []): x[p] = -1
        for p, t in zip(s.get('v', []), s.get('t', [])): x[p] = t
        for p, t in s.get('c', []): x[p] = t
        yield list(x), s


@settings(max_examples=30, deadline=None)
@given(T=st.integers(1, 12), n=st.integers(1, 3), L=st.integers(1, 24), seed=st.integers(0, 99), odd=st.booleans())
def test_changes_rebuild_every_state(T, n, L, seed, odd):
    tr = random_trace(T, n, L, seed, odd)
    for row in range(n):
        d = data_of(replay_html(tr, decode, row=row))
        back = {v: i for i, v in enumerate(hostile)}
        for k, (x, s) in enumerate(states(d)):
            want = tr.x[k, row].tolist()
            assert [mask_id if i < 0 else back[d['vocab'][i]] for i in x] == want
            if k:
                flags = lambda name: [p for p, on in enumerate(getattr(tr, name)[k - 1, row].tolist()) if on]
                assert s.get('r', []) == flags('remasked') and s.get('v', []) == flags('revealed')


@settings(max_examples=20, deadline=None)
@given(T=st.integers(1, 8), L=st.integers(1, 24), seed=st.integers(0, 99))
def test_changes_undo(T, L, seed):
    "Going back from the last state by undoing each change meets every earlier state: the changes name every position that changed"
    tr = random_trace(T, 1, L, seed, True)
    d = data_of(replay_html(tr, decode))
    seen = list(states(d))
    x = list(seen[-1][0])
    for k in range(T, 0, -1):
        s = seen[k][1]
        for p in {*s.get('r', []), *s.get('v', []), *(p for p, _ in s.get('c', []))}: x[p] = seen[k - 1][0][p]
        assert x == seen[k - 1][0]


def test_hostile_tokens_never_raw():
    tr = random_trace(20, 1, 64, seed=3)
    page = replay_html(tr, decode, title='</title><script>alert(2)</script>\u202e')
    clean = replay_html(random_trace(20, 1, 64, seed=3, V=1), lambda ids: 'x', title='x')
    assert page.isascii() or not set(page) - set(clean) - set(map(chr, range(128)))
    for bad in ('<script>alert', '<img', '\u202e', '\u200f', '\u2028', '\x00'): assert bad not in page
    assert page.count('</script') == clean.count('</script') and page.count('<script') == clean.count('<script') and page.count('<!--') == clean.count('<!--')
    d = data_of(page)
    assert d['title'] == '</title><script>alert(2)</script>\u202e' and set(d['vocab']) <= set(hostile)


def test_nothing_is_loaded():
    page = replay_html(random_trace(3, 1, 8), decode)
    assert not re.search(r'''(src|href)\s*=|@import|url\(|https?:''', page)
    assert "default-src 'none'" in page and 'innerHTML' not in page


def test_frame_in_a_notebook():
    out = replay(random_trace(3, 1, 8), decode)._repr_html_()
    src = re.search(r'srcdoc="([^"]*)"', out).group(1)
    assert html.unescape(src) == replay_html(random_trace(3, 1, 8), decode)
    assert 'sandbox="allow-scripts"' in out and out.count('<') == 2


def test_scores_and_temperature():
    tr = random_trace(6, 2, 16, seed=1)
    d = data_of(replay_html(tr, decode, row=1))
    lo, hi, T = d['score']['lo'], d['score']['hi'], 6
    for i in range(T):
        q = torch.tensor(list(base64.b64decode(d['score']['rows'][i])))
        want = tr.score[i, 1]
        assert torch.equal(q == 255, want.isnan())
        assert ((lo + (hi - lo) * q / 254 - want).abs()[q < 255] <= (hi - lo) / 254).all()
    assert d['tau'] == pytest.approx(tr.tau[:, 1].tolist(), rel=1e-3)


def test_values_without_a_number():
    tr = random_trace(3, 1, 8)
    tr = Trace(tr.x, tr.remasked, tr.revealed, torch.full_like(tr.score, torch.nan), torch.tensor([[torch.nan], [torch.inf], [0.]]), mask_id, tr.fixed)
    d = data_of(replay_html(tr, decode))
    assert d['tau'] == [None, 'inf', 0.] and d['score']['rows'] == [''] * 3


def test_size():
    tr = random_trace(128, 1, 128)
    full = Trace(tr.x, tr.remasked, tr.revealed, torch.randn(128, 1, 128), tr.tau, mask_id, tr.fixed)
    assert len(replay_html(full, decode).encode()) < 300_000


def test_file(tmp_path):
    tr = random_trace(3, 2, 8)
    p = replay(tr, decode, tmp_path/'a'/'b'/'r.html', row=1, title='two')
    assert p.read_text(encoding='utf-8') == replay_html(tr, decode, row=1, title='two')


def test_unwritable(tmp_path):
    (tmp_path/'file').write_text('')
    for p in (tmp_path/'file'/'r.html', tmp_path/'file'/'sub'/'r.html', tmp_path):
        with pytest.raises(OSError, match=re.escape(str(p))): replay(random_trace(1, 1, 4), decode, p)


def test_user_errors():
    tr = random_trace(3, 2, 8)
    for row in (-1, 2):
        with pytest.raises(ValueError, match=f'row={row}.*0 to 1'): replay_html(tr, decode, row=row)
    with pytest.raises(ValueError, match='start=4.*0 to 3'): replay_html(tr, decode, start=4)
    with pytest.raises(ValueError, match='trace.tau has shape'): Trace(tr.x, tr.remasked, tr.revealed, tr.score, tr.tau[:2], mask_id, tr.fixed)
    quiet = Trace(tr.x, torch.zeros_like(tr.remasked), tr.revealed, tr.score, tr.tau, mask_id, tr.fixed)
    with pytest.raises(ValueError, match='remasks nothing'): draw_step(quiet, 0, 0, decode)
    with pytest.raises(ValueError, match='i=3.*0 to 2'): draw_step(tr, 0, 3, decode)


@pytest.mark.filterwarnings('ignore:Glyph')
def test_figure_of_hostile_tokens(tmp_path):
    tr = random_trace(8, 1, 24, seed=2)
    i = tr.remasked[:, 0].any(1).nonzero()[0].item()
    for kw in ({}, dict(window=3), dict(window=(0, 5)), dict(score=torch.sigmoid)):
        draw_step(tr, 0, i, decode, **kw).savefig(tmp_path/'f.png')


chromium = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
@pytest.mark.skipif(not chromium, reason='no Chromium here')
def test_in_a_browser(tmp_path):
    "The page's own script, at a step in the middle: each token's kind, and hostile text as text"
    tr, k = random_trace(20, 1, 64, seed=3), 13
    p = replay(tr, decode, tmp_path/'r.html', title='<b>t</b>')
    dom = subprocess.run([chromium, '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
                          '--disable-component-update', '--disable-sync', f'--user-data-dir={tmp_path}/profile', '--dump-dom', f'{p.as_uri()}#{k}'],
                         capture_output=True, text=True, encoding='utf-8', errors='replace', timeout=120, check=True).stdout
    body = re.search(r'<div id="text">(.*?)<div id="detail">', dom, re.S).group(1)
    x, out, new = tr.x[k, 0] == mask_id, tr.remasked[k - 1, 0], tr.revealed[k - 1, 0]
    kind = lambda p: ('prompt' if tr.fixed[0, p] else 'out' if out[p] and x[p] else 'mask' if x[p] else 'redo' if out[p] and new[p] else 'new' if new[p] else 'kept')
    assert re.findall(r'class="tok (\w+)"', body) == [kind(p) for p in range(tr.L)]
    assert '<script' not in body and '<img' not in body and '\u202e' not in body
    if (tr.x[k, 0] == 0).any(): assert '&lt;/script&gt;&lt;script&gt;alert(1)' in body
    assert re.search(r'<h1 id="title">&lt;b&gt;t', dom)
