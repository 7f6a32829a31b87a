"""The docs site that `make docs` leaves in _docs/, in a browser: every page, on a desk and a phone, light and dark."""
import base64, functools, http.server, json, os, re, sys, threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
import pytest

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root/'tools'))
import order
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
        elif u.fragment and there.suffix == '.html':
            page_there = there.relative_to(site.resolve()).as_posix()
            if unquote(u.fragment) not in links(page_there).ids: broken.append(to)
    assert not broken

def test_every_notebook_is_a_page_and_in_order():
    text = (site/'index.html').read_text(encoding='utf-8')
    text = text[text.index('id="quarto-sidebar"'):text.index('<main')]
    rooms = [re.sub(r'(^|/)\d+_', r'\1', order.room_of(p)) for p in order.notebooks()]
    assert {f'{r}.html' for r in rooms} <= set(pages)
    chapters = [re.sub(r'^\d+_', '', order.room_of(p)) for p in order.notebooks() if p.name[0].isdigit()]
    at = [re.search(rf'href="[^"]*\b{c}\.html"', text).end() for c in chapters]
    assert at == sorted(at)

def test_colab_opens_notebooks_that_exist():
    found = {page: [u for u in links(page).to if 'colab.research' in u] for page in pages}
    assert sum(map(bool, found.values())) >= 20
    assert not [u for us in found.values() for u in us if not (root/'nbs'/u.rsplit('/nbs/', 1)[1]).is_file()]

SOURCE = (r'<p><a href="[^"]*/blob/main/(navira/[\w/]+\.py#L\d+)"[^>]*>source</a></p>\s*'
          r'<h3 id="([^"]+)"')

def test_source_links_lead_to_the_definition():
    lost, seen = [], 0
    for page in pages:
        text = (site/page).read_text(encoding='utf-8')
        for head, tail in re.findall(SOURCE, text):
            path, line = head.split('#L'); seen += 1
            name = tail.rsplit('.', 1)[-1].split('-')[0]
            there = (root/path).read_text(encoding='utf-8').splitlines()[int(line) - 1:int(line) + 6]
            if name not in ' '.join(there).lower(): lost.append((page, head, tail))
    assert seen > 150 and not lost

def test_nothing_is_asked_of_the_network():
    for css in site.rglob('*.css'):
        assert not re.search(r'(?:@import\s*|url\(\s*)["\']?https?:', css.read_text(encoding='utf-8')), css
    for page in pages:
        text = (site/page).read_text(encoding='utf-8')
        asked = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(https?:[^"]+)"', text)
        assert not [m for m in asked if 'canonical' not in m and 'example.org' not in m], page

# --- in a browser ----------------------------------------------------------------------------------------------------
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
        # a request that the next click cut off is no fault of the page; a missing file answers 404
        p.on('requestfailed', lambda r: bad.append(r.url) if r.failure != 'net::ERR_ABORTED' else None)
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
        .map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160), v.nodes[0].failureSummary.slice(0, 300)]))""",
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
    broken = '[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src.slice(0, 80))'
    assert not p.evaluate(broken)
    assert not p.locator('.katex-error').count() and not re.search(r'\\[a-z]{2,}|\$', p.evaluate(SEEN))
    formulas = len(re.findall(r'class="math (?:inline|display)"', text))
    assert p.locator('.katex').count() >= formulas
    p.set_viewport_size(phone)
    assert p.evaluate('document.documentElement.scrollWidth') <= 390
    assert p.evaluate('window.scrollTo(200, 0), window.scrollX') == 0
    small = p.evaluate("""[...document.querySelectorAll('.cell-output-display > img, .cell-output-display figure img')]
        .filter(i => i.naturalWidth > 900 && i.getBoundingClientRect().width < 600).length""")
    assert not small      # a wide figure keeps its size and scrolls, so that its letters are read
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
    assert numbers == dict(masked_diffusion=['1'], joint=['2'], prism=['3'], stochastic_remasking=['4'])

def test_search_finds_a_function(visit):
    p = visit('index.html')
    p.keyboard.press('/')
    p.keyboard.type('plackett_luce')
    p.wait_for_function("""[...document.querySelectorAll('.smalldocs-search-results a, .aa-Item a')]
        .some(a => /stochastic_remasking/.test(a.href))""", timeout=10_000)
    p.keyboard.press('Enter'); p.wait_for_load_state()
    assert 'plackett_luce' in p.locator('main').inner_text()

def test_search_works_in_a_page_that_was_opened_as_a_file(browser):
    p = browser.new_page()
    p.goto((site/'index.html').as_uri())
    p.keyboard.press('/')
    p.keyboard.type('plackett_luce')
    p.locator('.smalldocs-search-results a').first.wait_for(timeout=10_000)
    p.close()

CONTRAST = """e => {
    const rgb = c => c.match(/[\\d.]+/g).map(Number), weights = [.2126, .7152, .0722];
    const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const light = c => c.slice(0, 3).map(linear).reduce((s, v, i) => s + v * weights[i], 0);
    let back = e; while (back && (rgb(getComputedStyle(back).backgroundColor)[3] ?? 1) < 1) back = back.parentElement;
    const b = rgb(getComputedStyle(back || document.body).backgroundColor);
    const f = rgb(getComputedStyle(e).color), a = f[3] ?? 1;
    const [lo, hi] = [light(b), light(f.slice(0, 3).map((v, i) => a * v + (1 - a) * b[i]))].sort((x, y) => x - y);
    return (hi + .05) / (lo + .05) }"""

@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_what_the_search_finds_can_be_read(visit, scheme):
    "Titles, sections, excerpts and what is marked in them, also of the result that arrow keys have reached"
    p = visit('index.html', scheme=scheme)
    p.keyboard.press('/'); p.keyboard.type('remask')
    p.locator('.search-result-text mark').first.wait_for(timeout=10_000)
    p.keyboard.press('ArrowDown')
    for part in ('title', 'section', 'text', 'text mark'):
        for e in p.locator(f'.search-result-{part}').all()[:4]: assert e.evaluate(CONTRAST) >= 4.5, part

def test_the_answers_of_which_policy_are_seen_on_a_phone(visit):
    "The second column holds the answer and lies within the window, without scrolling"
    p = visit('which_policy.html', viewport=phone)
    tables = p.locator('main table').all()
    assert len(tables) >= 4
    for t in tables:
        for row in t.locator('tr').all():
            seen = row.locator('th, td').nth(1).evaluate("""e => {
                const r = document.createRange(); r.selectNodeContents(e);
                const b = r.getBoundingClientRect(); return [b.left, b.right] }""")
            assert 0 <= seen[0] and seen[1] <= 390, row.inner_text()

WIDE = [('numbers', '.table-scroll'), ('experiments/figures', '.cell-output-display:has(> img, figure img)')]

@pytest.mark.parametrize('page, what', WIDE)
def test_what_is_cut_off_shows_at_the_edge(visit, page, what):
    "Pixels of the right edge of what can be scrolled change when its end is reached: the shadow goes"
    p = visit(f'{page}.html', viewport=phone)
    wide = next(e for e in p.locator(what).all() if e.evaluate('e => e.scrollWidth > e.clientWidth + 40'))
    wide.scroll_into_view_if_needed()
    dark = lambda: p.evaluate("""async png => {
        const i = new Image(); i.src = 'data:image/png;base64,' + png; await i.decode();
        const c = document.createElement('canvas'); c.width = i.width; c.height = i.height;
        const x = c.getContext('2d'); x.drawImage(i, 0, 0);
        const d = x.getImageData(c.width - 3, 0, 2, c.height).data; let n = 0;
        for (let k = 0; k < d.length; k += 4) n += d[k] < 215;
        return n / (d.length / 4) }""", base64.b64encode(wide.screenshot()).decode())
    assert dark() > .5
    wide.evaluate('e => { e.scrollLeft = e.scrollWidth }'); p.wait_for_timeout(100)
    assert dark() < .5

def test_from_the_first_chapter_to_the_last_by_next(visit):
    "The order is the sidebar's"
    listed = re.findall(r'([\w/]+)\.ipynb', (root/'nbs'/'sidebar.yml').read_text())
    p, seen = visit('index.html'), []
    while (n := p.locator('.nav-page-next a')).count():
        seen.append(p.url.rsplit('/', 1)[1].split('#')[0])
        n.first.click(); p.wait_for_load_state()
        assert len(seen) <= len(listed)
    last = re.sub(r'(^|/)\d+_', r'\1', listed[-1])
    assert p.url.endswith(f'/{last}.html') and len(seen) >= 18 and p.locator('.nav-page-previous a').count()

def test_a_newcomer_reaches_a_policy_of_ones_own_by_links(visit):
    p = visit('index.html')
    for to in ('masked_diffusion', 'prism', 'decoupling', 'add_your_own'):      # as the home page says
        here = p.locator(f'main a[href*="{to}.html"], .nav-page-next a[href*="{to}.html"]')
        here.first.click(); p.wait_for_url(f'**/{to}.html*')
        if to == 'masked_diffusion': assert 'At a first reading' in p.locator('main').inner_text()
    text = p.locator('main').inner_text()
    assert all(word in text for word in ('@register', 'st.committed', 'curves(', 'at equal entropy'))

def test_the_dark_theme_can_be_chosen(visit):
    p = visit('index.html')
    dark = lambda: p.evaluate("""(c => .3 * c[0] + .6 * c[1] + .1 * c[2] < 128)
        (getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))""")
    assert not dark()
    p.locator('.quarto-color-scheme-toggle').first.click()
    p.wait_for_timeout(300)
    assert dark()
