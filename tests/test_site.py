"""The docs site that `make docs` leaves in _docs/, in a browser: every page, on a desk and a phone,
light and dark; and the page that samples, against the library."""
import base64, functools, http.server, json, os, re, threading, time
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit
import numpy as np
import pytest
import torch
import navira
from navira import schedules
from navira.diffusion import Denoiser
from navira.hosts.servers import Ran
from navira.tasks.sudoku import is_solved, puzzles, Sudoku

from order import notebooks, room_of, root

site, axe = root/'_docs', root/'docs_assets'/'axe.min.js'
pages = sorted(p.relative_to(site).as_posix() for p in site.rglob('*.html')
               if 'site_libs' not in p.parts)
# there nothing is skipped: .ci/run makes the site, and has a browser
ci = os.environ.get('CI') == 'true'
pytestmark = pytest.mark.skipif(not pages and not ci, reason='no _docs: make docs')
desk, phone = dict(width=1280, height=900), dict(width=390, height=844)

class Links(HTMLParser):
    "What a page links to, and the places in it that can be linked to"
    def __init__(self, text):
        super().__init__(); self.to, self.ids = [], set(); self.feed(text)
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        self.ids |= {a[k] for k in ('id', 'name') if a.get(k)}
        to = a.get('href') or a.get('src')
        if tag in ('a', 'link', 'script', 'img', 'iframe') and to: self.to.append(to)

@functools.cache
def links(page): return Links((site/page).read_text(encoding='utf-8'))

def leads(page, to):
    "Does a link of a page lead to a file of the site, and to a place that is in it?"
    u, home = urlsplit(to), site.resolve()
    if u.scheme or u.netloc: return True
    target = (site/page).parent/unquote(u.path) if u.path else site/page
    target = (target/'index.html' if target.is_dir() else target).resolve()
    if not (target.is_file() and target.is_relative_to(home)): return False
    if not u.fragment or target.suffix != '.html': return True
    return unquote(u.fragment) in links(target.relative_to(home).as_posix()).ids

def test_no_link_is_broken():
    assert not [(page, to) for page in pages for to in links(page).to if not leads(page, to)]


def test_every_notebook_is_a_page():
    rooms = [re.sub(r'(^|/)\d+_', r'\1', room_of(p)) for p in notebooks()]
    assert {f'{r}.html' for r in rooms} <= set(pages)


# --- in a browser ---
@pytest.fixture(scope='module')
def served():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *a): pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0),
                                             functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()

@pytest.fixture(scope='module')
def window(browser): # one for all: scripts and fonts are read once
    with browser.new_context() as c: yield c

@pytest.fixture
def visit(window, served):
    "Opens a page; when the test is over, nothing was logged and nothing was missing"
    bad, p = [], window.new_page()
    p.on('console', lambda m: bad.append(m.text) if m.type in ('error', 'warning') else None)
    p.on('pageerror', lambda e: bad.append(str(e)))
    here = served, 'data:', 'blob:', 'about:'        # no other host is asked for anything
    p.on('request', lambda r: None if r.url.startswith(here) else bad.append(r.url))
    # a request that the next click cut off is no fault of the page; a missing file answers 404
    p.on('requestfailed', lambda r: bad.append(r.url) if r.failure != 'net::ERR_ABORTED' else None)
    p.on('response', lambda r: bad.append(f'{r.status} {r.url}') if r.status >= 400 else None)
    def go(page, size=desk, scheme='light'):
        p.set_viewport_size(size)
        p.emulate_media(color_scheme=scheme)
        p.goto(f'{served}/{page}', wait_until='load')
        return p
    yield go
    p.close()
    assert not bad

def serious(p, *rules):
    "What axe-core has against the page, of what keeps somebody out"
    p.add_script_tag(path=axe)
    found = p.evaluate("""rules => axe.run({exclude: ['.katex']},
        {resultTypes: ['violations'], ...(rules.length && {runOnly: rules})}).then(r => r.violations
        .filter(v => ['serious', 'critical'].includes(v.impact))
        .map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160)]))""",
        rules)
    assert not found, json.dumps(found, indent=1)

# What a reader sees of the text: no source of a formula, wherever it stands but in code.
SEEN = """[...document.querySelectorAll('main p, main li, main td, main h2, main h3')]
    .filter(e => !e.closest('pre, code, .cell-output')).map(e => {
        const c = e.cloneNode(true); c.querySelectorAll('.katex, code').forEach(x => x.remove());
        return c.textContent }).join(' ')"""
BROKEN = '[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)'

@pytest.mark.parametrize('page', pages)
def test_a_page(page, visit):
    p, text = visit(page, phone), (site/page).read_text(encoding='utf-8')
    assert p.title() and p.locator('h1').count() >= 1 and not p.evaluate(BROKEN)
    assert '](http' not in text # Markdown that was not rendered
    assert not p.locator('.katex-error').count() and not re.search(r'\\[a-z]{2,}|\$',
                                                                   p.evaluate(SEEN))
    formulas = len(re.findall(r'class="math (?:inline|display)"', text))
    assert p.locator('.katex').count() >= formulas
    assert p.evaluate('document.documentElement.scrollWidth') <= 390
    assert p.evaluate('window.scrollTo(200, 0), window.scrollX') == 0

# all are made alike: the front page and the first of each folder
@pytest.mark.parametrize('page', {os.path.dirname(page): page for page in reversed(pages)}.values())
def test_a_page_keeps_nobody_out(page, visit):
    serious(visit(page))
    serious(visit(page, scheme='dark'), 'color-contrast')


# --- the page that samples (nbs/start/live.ipynb) ---
FILES = '/site_libs/live'
# Runs every start to its end; a pass is its text, and its logits and qualities as bytes in base64
RUNS = """async ([files, task, how, starts]) => {
    const live = await import(`${files}/live.js`)
    const net = window.net ??= await live.network(task), {pass} = net
    const char = b => String.fromCharCode(b), passes = {}, runs = []
    const packed = a => btoa([...new Uint8Array(Float32Array.from(a).buffer)].map(char).join(''))
    net.pass = async x => {
        const out = await pass(x), logits = Array.from(x, (_, p) => [...out.logits(p)]).flat()
        passes[x.join()] = [packed(logits), packed(out.quality)]
        return out
    }
    for (const [sample, x] of starts.entries()) {
        const run = new live.Run(net, x, {...how, sample})
        while (run.i < run.T) await run.step()
        runs.push([[...run.x], run.ran])
    }
    net.pass = pass
    return [runs, passes]
}"""

class Browser(Denoiser):
    "A model that answers as the browser's network did; a KeyError for a text that it did not see."
    has_quality = True
    def __init__(self, model, given):
        self.given, self.mask_id, self.length = given, model.mask_id, model.length

    def __call__(self, x):
        given = [self.given[','.join(map(str, row))] for row in x.tolist()]
        logits, quality = (torch.stack([torch.frombuffer(bytearray(base64.b64decode(g[j])),
                                                         dtype=torch.float32) for g in given])
                           for j in (0, 1))
        return Ran(x, logits.view(*x.shape, -1), self.mask_id, torch.arange(len(x)), quality)

def in_words(policy): # as the page has it: policy, schedule
    rule, _, schedule = policy.rpartition('-')
    return (rule, schedule) if hasattr(schedules, schedule) else (policy, 'constant')

def test_live_page_draws_the_tokens_of_the_library(visit):
    """On what the browser's network gave, the library draws the page's tokens, all of them. The
    network is the library's, so that the rest is rounding."""
    model, p = navira.load('sudoku'), visit('start/live.html')
    for policy, passes, n, hyper in [
            ('backbone', 10, 4, {}), ('prism', 10, 4, {}), ('navira-piecewise', 16, 4, {}),
            ('navira-onepass', 100, 1, dict(on=.5))]:   # more steps than cells: some have no pass
        x = torch.from_numpy(puzzles(Sudoku(), 35, 0, n))
        rule, schedule = in_words(policy)
        how = dict(eta=.15, on=0.) | hyper
        said = dict(policy=rule, schedule=schedule, passes=passes, seed=7) | how
        runs, given = p.evaluate(RUNS, [FILES, 'sudoku', said, x.tolist()])
        kw = dict(budget=passes, seed=7, prompt=x, progress=False)
        if policy != 'backbone': kw |= how
        theirs = Browser(model, given)
        same = navira.sample(theirs, policy, **kw)
        assert same.tokens.tolist() == [t for t, _ in runs]
        assert same.n_forward.tolist() == [n for _, n in runs]
        seen = torch.tensor([[*map(int, text.split(','))] for text in given])
        ours, theirs = model(seen), theirs(seen)
        free = seen == model.mask_id
        with torch.no_grad():
            torch.testing.assert_close(theirs.logits(free), ours.logits(free), atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(theirs.quality(), ours.quality(), atol=1e-3, rtol=1e-3)

def test_live_page_reads_a_prompt_as_the_tokenizer_does(visit):
    texts = ['', ' ', 'It was late.', "I'd say we're, they'll; it's", 'a  b\n\n c\t\td \n',
             'naïve 東京 😀 e\u0301', '12,345.67 -- (x)', 'ÀÉ½²', ' \n  tail  ',
             '\ufeffbom\x85next\u2028line\u00a0space']
    read = """async ([files, texts]) => { const live = await import(`${files}/live.js`)
        const net = await live.about('text'); return texts.map(t => live.encode(t, net)) }"""
    texts += ['qzjxkv' * 500, 'antidisestablishmentarianism' * 100]
    start = time.monotonic()
    ids = visit('start/live.html').evaluate(read, [FILES, texts])
    assert ids == [navira.load().tokenizer.encode(t).ids for t in texts]
    assert time.monotonic() - start < 20     # a word of 3,000 letters took four seconds a key

@pytest.fixture
def live(visit):
    "Opens the page and waits for its form; it plays as fast as it goes."
    def go(*args):
        p = visit('start/live.html', *args)
        p.locator('#live-play').wait_for()
        p.select_option('[name=pace]', '0')
        return p
    return go

def at(p, k):
    "Waits until the slider is at a step, or beyond."
    p.wait_for_function(f'document.getElementById("live-slider").valueAsNumber >= {k}')


def test_live_page_works_by_keyboard_and_says_what_happens(live):
    "Cells, policies, Step and Play; the status line has the same words that the panels have."
    p = live()
    def at_field(name, *keys):
        p.locator(name).focus()
        for key in keys: p.keyboard.press(key)
    cell = p.get_by_label('row 1, column 1', exact=True)
    cell.focus()
    for key in ('9', 'ArrowRight'): p.keyboard.press(key)
    assert p.evaluate('document.activeElement.ariaLabel') == 'row 1, column 2'
    for key in ('ArrowLeft', 'Delete'): p.keyboard.press(key)
    assert cell.input_value() == ''
    at_field('[name=policyL]', *'PRISM')
    at_field('[name=passes]', 'Control+A', '6')
    at_field('#live-step', 'Enter')
    at(p, 1)
    status = p.locator('#live-status')
    assert re.match(r'PRISM, step 1 of 6 .* written.*NAVIRA, step 0 of 3', status.inner_text())
    at_field('#live-play', 'Enter')
    at(p, 6)
    p.get_by_role('button', name='Play').wait_for()      # it has come to its end
    said = status.inner_text()
    for j, facts in enumerate(p.locator('#live-panels .facts').all_inner_texts()):
        digits = p.locator('#live-panels table').nth(j).locator('b').all_inner_texts()
        grid = np.array([[int(d) - 1 for d in digits]])
        assert facts in said and ('Solved' if is_solved(Sudoku(), grid)[0] else 'Not') in facts
    at_field('#live-slider', 'Home')
    assert 'step 0 of 6' in p.locator('#live-slider').get_attribute('aria-valuetext')


def test_live_page_refuses_bad_input_at_its_field(live):
    p = live()
    def refused(message, field):
        p.click('#live-step')
        p.wait_for_function('document.getElementById("live-error").innerText')
        assert re.search(message, p.locator('#live-error').inner_text())
        focused = p.evaluate('[document.activeElement.name, document.activeElement.ariaLabel]')
        assert field in focused
    p.fill('[name=passes]', '1'); refused('Passes: 1. .*2', 'passes'); p.fill('[name=passes]', '4')
    row = [p.get_by_label(f'row 1, column {c}', exact=True) for c in (1, 2)]
    for cell in row: cell.fill('6')
    refused('row 1, column 1: 6. .*already', 'row 1, column 1')
    p.check('[value=text]')
    p.fill('[name=prompt]', 'word ' * 200); refused('fewer than 128', 'prompt')
    p.fill('[name=prompt]', 'a [MASK] b'); refused('(?s)Prompt: a .MASK. b', 'prompt')
    p.check('[value=sudoku]')               # what is not shown is not asked for
    p.select_option('[name=puzzle]', index=1); p.fill('[name=tauR]', '-1'); refused('τ: -1', 'tauR')
    p.select_option('[name=policyR]', 'prism'); p.click('#live-step'); at(p, 1)

def test_live_page_fits_a_phone_and_keeps_nobody_out(live):
    p = live(phone)
    for task, scheme in [('sudoku', 'light'), ('text', 'dark')]:
        p.emulate_media(color_scheme=scheme)
        p.check(f'[value={task}]'); p.fill('[name=passes]', '8'); p.fill('[name=eta]', '.5')
        for _ in range(7): p.click('#live-step')
        at(p, 7)
        assert p.locator('.tok:is(.remasked, .rewritten)').count() > 2 # more than in the legend
        assert p.evaluate('document.documentElement.scrollWidth') <= 390
        serious(p, 'color-contrast', 'aria-allowed-attr', 'label', 'scrollable-region-focusable')
