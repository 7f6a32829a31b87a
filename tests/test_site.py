"""The docs site that `make docs` leaves in _docs/, in a browser: every page, on a desk and a phone,
light and dark."""
import functools, http.server, json, os, re, sys, threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
import pytest

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root/'tools'))
import order
site, axe = root/'_docs', root/'docs_assets'/'axe.min.js'
pages = sorted(p.relative_to(site).as_posix() for p in site.rglob('*.html')
               if 'site_libs' not in p.parts)
# there nothing is skipped: .ci/run makes the site, and has a browser
ci = os.environ.get('CI') == 'true'
pytestmark = pytest.mark.skipif(not pages and not ci, reason='no _docs: make docs')

def test_the_site_is_there():
    assert len(pages) >= 20 and axe.exists()
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

@pytest.mark.parametrize('page', pages)
def test_no_link_is_broken(page):
    broken = []
    for to in links(page).to:
        u = urlsplit(to)
        if u.scheme or u.netloc: continue
        target = (site/page).parent/unquote(u.path) if u.path else site/page
        if target.is_dir(): target /= 'index.html'
        there = target.resolve()
        if not (there.is_file() and there.is_relative_to(site.resolve())): broken.append(to)
        elif u.fragment and there.suffix == '.html':
            page_there = there.relative_to(site.resolve()).as_posix()
            if unquote(u.fragment) not in links(page_there).ids: broken.append(to)
    assert not broken

def test_every_notebook_is_a_page():
    rooms = [re.sub(r'(^|/)\d+_', r'\1', order.room_of(p)) for p in order.notebooks()]
    assert {f'{r}.html' for r in rooms} <= set(pages)

def test_nothing_is_asked_of_the_network():
    for css in site.rglob('*.css'):
        assert not re.search(r'(?:@import\s*|url\(\s*)["\']?https?:',
                             css.read_text(encoding='utf-8')), css
    for page in pages:
        text = (site/page).read_text(encoding='utf-8')
        asked = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(https?:[^"]+)"',
                           text)
        assert not [m for m in asked if 'canonical' not in m and 'example.org' not in m], page

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

@pytest.fixture
def visit(browser, served):
    "Opens a page; when the test is over, nothing was logged and nothing was missing"
    bad, contexts = [], []
    def go(page, viewport=desk, scheme='light'):
        c = browser.new_context(viewport=viewport, color_scheme=scheme); contexts.append(c)
        p = c.new_page()
        p.on('console', lambda m: bad.append(m.text) if m.type in ('error', 'warning') else None)
        p.on('pageerror', lambda e: bad.append(str(e)))
        # a request that the next click cut off is no fault of the page; a missing file answers 404
        p.on('requestfailed', lambda r: bad.append(r.url) if r.failure != 'net::ERR_ABORTED'
             else None)
        p.on('response', lambda r: bad.append(f'{r.status} {r.url}') if r.status >= 400 else None)
        p.goto(f'{served}/{page}', wait_until='load')
        return p
    yield go
    for c in contexts: c.close()
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

@pytest.mark.parametrize('page', pages)
def test_a_page(page, visit):
    p, text = visit(page), (site/page).read_text(encoding='utf-8')
    assert p.title() and p.locator('h1').count() >= 1
    assert '](http' not in text # Markdown that was not rendered
    broken = '[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)'
    assert not p.evaluate(broken)
    assert not p.locator('.katex-error').count() and not re.search(r'\\[a-z]{2,}|\$',
                                                                   p.evaluate(SEEN))
    formulas = len(re.findall(r'class="math (?:inline|display)"', text))
    assert p.locator('.katex').count() >= formulas
    p.set_viewport_size(phone)
    assert p.evaluate('document.documentElement.scrollWidth') <= 390
    assert p.evaluate('window.scrollTo(200, 0), window.scrollX') == 0
    p.set_viewport_size(desk)
    serious(p)
    p.emulate_media(color_scheme='dark'); p.reload()
    serious(p, 'color-contrast')

def test_equations_have_the_numbers_of_the_paper(visit):
    found = {}
    for page in ('masked_diffusion', 'joint', 'prism', 'stochastic_remasking'):
        p = visit(f'{page}.html')
        p.locator('.katex').first.wait_for()
        found[page] = p.locator('.katex-html .tag').all_inner_texts()
    numbers = {k: [re.sub(r'\W', '', t) for t in v] for k, v in found.items()}
    assert numbers == dict(masked_diffusion=['1'], joint=['2'], prism=['3'],
                           stochastic_remasking=['4'])

def test_search_finds_a_function(visit):
    p = visit('index.html')
    p.keyboard.press('/')
    p.keyboard.type('prism_stochastic')
    # a click, since Enter opens what the letters typed so far have found
    p.locator('.smalldocs-search-results a[href*="stochastic_remasking"]').first.click()
    p.wait_for_url('**/stochastic_remasking.html*')
    assert 'prism_stochastic' in p.locator('main').inner_text()
