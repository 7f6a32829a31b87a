"""The docs site, as `make docs` leaves it in _docs/, in a browser: every page, on a desk and on a phone, by day and by night."""
import functools, http.server, json, os, re, threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
import pytest

root = Path(__file__).resolve().parent.parent
site, axe = root/'_docs', root/'docs_assets'/'axe.min.js'
pages = sorted(p.relative_to(site).as_posix() for p in site.rglob('*.html') if 'site_libs' not in p.parts)
ci = os.environ.get('CI') == 'true'      # there nothing is skipped: .ci/run makes the site, and has a browser
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
        if tag in ('a', 'link', 'script', 'img', 'iframe') and (to := a.get('href') or a.get('src')): self.to.append(to)

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
        elif u.fragment and there.suffix == '.html' and unquote(u.fragment) not in links(there.relative_to(site.resolve()).as_posix()).ids: broken.append(to)
    assert not broken

def test_every_notebook_is_a_page_and_in_order():
    text = (site/'index.html').read_text(encoding='utf-8')
    text = text[text.index('id="quarto-sidebar"'):text.index('<main')]
    chapters = [re.sub(r'^\d+_', '', p.stem) for p in sorted((root/'nbs').glob('[0-9]*.ipynb'))]
    assert {f'{c}.html' for c in [*chapters, 'index', 'which_policy', 'add_your_own', 'numbers']} <= set(pages)
    at = [re.search(rf'href="[^"]*\b{c}\.html"', text).end() for c in chapters]
    assert at == sorted(at)

def test_colab_opens_notebooks_that_exist():
    found = {page: [u for u in links(page).to if 'colab.research' in u] for page in pages}
    assert sum(map(bool, found.values())) >= 20
    assert not [u for us in found.values() for u in us if not (root/'nbs'/u.rsplit('/nbs/', 1)[1]).is_file()]

def test_source_links_lead_to_the_definition():
    lost, seen = [], 0
    for page in pages:
        for head, tail in re.findall(r'<p><a href="[^"]*/blob/main/(navira/\w+\.py#L\d+)"[^>]*>source</a></p>\s*<h3 id="([^"]+)"', (site/page).read_text(encoding='utf-8')):
            path, line = head.split('#L'); seen += 1
            name = tail.rsplit('.', 1)[-1].split('-')[0]
            if name not in ' '.join((root/path).read_text(encoding='utf-8').splitlines()[int(line) - 1:int(line) + 6]).lower(): lost.append((page, head, tail))
    assert seen > 300 and not lost

def test_nothing_is_asked_of_the_network():
    for css in site.rglob('*.css'): assert not re.search(r'(?:@import\s*|url\(\s*)["\']?https?:', css.read_text(encoding='utf-8')), css
    for page in pages:
        asked = [m for m in re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(https?:[^"]+)"', (site/page).read_text(encoding='utf-8')) if 'canonical' not in m and 'example.org' not in m]
        assert not asked, page

# --- in a browser ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def served():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *a): pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=site))
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
        p.on('requestfailed', lambda r: bad.append(r.url))
        p.on('response', lambda r: bad.append(f'{r.status} {r.url}') if r.status >= 400 else None)
        p.goto(f'{served}/{page}', wait_until='load')
        return p
    yield go
    for c in contexts: c.close()
    assert not bad

def serious(p, *rules):
    "What axe-core has against the page, of what keeps somebody out"
    p.add_script_tag(path=axe)
    found = p.evaluate("rules => axe.run({exclude: ['.katex']}, {resultTypes: ['violations'], ...(rules.length && {runOnly: rules})}).then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact)).map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160), v.nodes[0].failureSummary.slice(0, 300)]))", rules)
    assert not found, json.dumps(found, indent=1)

# What a reader sees of the text: no source of a formula, wherever it stands but in code.
SEEN = """[...document.querySelectorAll('main p, main li, main td, main h2, main h3')].filter(e => !e.closest('pre, code, .cell-output')).map(e => {
    const c = e.cloneNode(true); c.querySelectorAll('.katex, code').forEach(x => x.remove()); return c.textContent }).join(' ')"""

@pytest.mark.parametrize('page', pages)
def test_a_page(page, visit):
    p, text = visit(page), (site/page).read_text(encoding='utf-8')
    assert p.title() and p.locator('h1').count() >= 1
    assert not p.evaluate("[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src.slice(0, 80))")
    assert not p.locator('.katex-error').count() and not re.search(r'\\[a-z]{2,}|\$', p.evaluate(SEEN))
    formulas = len(re.findall(r'class="math (?:inline|display)"', text))
    assert p.locator('.katex').count() >= formulas
    p.set_viewport_size(phone)
    assert p.evaluate('document.documentElement.scrollWidth') <= 390
    assert p.evaluate('window.scrollTo(200, 0), window.scrollX') == 0
    small = p.evaluate("[...document.querySelectorAll('.cell-output-display > img, .cell-output-display figure img')].filter(i => i.naturalWidth > 900 && i.getBoundingClientRect().width < 600).length")
    assert not small      # a wide figure keeps its size and scrolls, so that its letters are read
    p.set_viewport_size(desk)
    serious(p)
    p.emulate_media(color_scheme='dark'); p.reload()
    serious(p, 'color-contrast')

def test_equations_have_the_numbers_of_the_paper(visit):
    found = {}
    for page in ('masked_diffusion', 'prism', 'stochastic_remasking'):
        p = visit(f'{page}.html')
        p.locator('.katex').first.wait_for()
        found[page] = p.locator('.katex-html .tag').all_inner_texts()
    assert {k: [re.sub(r'\W', '', t) for t in v] for k, v in found.items()} == dict(masked_diffusion=['1', '2'], prism=['3'], stochastic_remasking=['4'])

def test_search_finds_a_function(visit):
    p = visit('index.html')
    p.keyboard.press('/')
    p.keyboard.type('gumbel_topk')
    p.wait_for_function("[...document.querySelectorAll('.smalldocs-search-results a, .aa-Item a')].some(a => /stochastic_remasking/.test(a.href))", timeout=10_000)
    p.keyboard.press('Enter'); p.wait_for_load_state()
    assert 'gumbel_topk' in p.locator('main').inner_text()

def test_from_the_first_chapter_to_the_last_by_next(visit):
    p, seen = visit('index.html'), []
    while (n := p.locator('.nav-page-next a')).count():
        seen.append(p.url.rsplit('/', 1)[1].split('#')[0])
        n.first.click(); p.wait_for_load_state()
        assert len(seen) < 50
    assert p.url.endswith('cli.html') and len(seen) >= 18 and p.locator('.nav-page-previous a').count()

def test_a_newcomer_reaches_a_policy_of_ones_own_by_links(visit):
    p = visit('index.html')
    for to in ('masked_diffusion', 'prism', 'decoupling', 'add_your_own'):      # as the home page sends those who know transformers
        here = p.locator(f'main a[href*="{to}.html"], .nav-page-next a[href*="{to}.html"]')
        here.first.click(); p.wait_for_url(f'**/{to}.html*')
        if to == 'masked_diffusion': assert 'At a first reading' in p.locator('main').inner_text()
    text = p.locator('main').inner_text()
    assert all(word in text for word in ('@register', 'st.committed', 'figures.curves', 'at equal entropy'))

def test_the_dark_theme_can_be_chosen(visit):
    p = visit('index.html')
    dark = lambda: p.evaluate("(c => .3 * c[0] + .6 * c[1] + .1 * c[2] < 128)(getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))")
    assert not dark()
    p.locator('.quarto-color-scheme-toggle').first.click()
    p.wait_for_timeout(300)
    assert dark()
