"""The docs site in _docs/: nbs/ -> _proc/ -> _docs/. Quarto renders the pages where it is installed, else smalldocs.

Either way a page asks nothing of another server: equations are shown by the site's own copy of KaTeX, in fonts that
the reader has. Wide things scroll by themselves and can be reached by keyboard; figures have a text.

    python tools/build_docs.py [--smalldocs]
"""
import html, importlib, os, posixpath, re, shutil, subprocess, sys, tarfile, tempfile
from functools import partial, reduce
from pathlib import Path
from nbdev import doclinks
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup, _build_modidx
from nbdev.process import NBProcessor
from nbdev.processors import exec_show_docs
from nbdev.quarto import refresh_quarto_yml
from nbdev.serve import proc_nbs
import order

katex, axe = 'katex@0.16.11', 'axe-core@4.10.3'      # tests/test_site.py looks with axe-core; the site has none of it

def fetch(package, what, dest):
    "Copy a file or folder of an npm package to `dest`, once."
    if dest.exists(): return
    if not shutil.which('npm'): sys.exit(f'no npm here, and no copy of {package} in {dest}')
    safely = dict(filter='data') if hasattr(tarfile, 'data_filter') else {}
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(['npm', 'pack', package, '--silent'], cwd=tmp, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(tmp).glob('*.tgz'))) as t: t.extractall(tmp, **safely)
        dest.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(tmp)/'package'/what, dest)

# --- names -----------------------------------------------------------------------------------------------------------
class Names:
    """What a name means on a page. Signatures may name what a later cell defines, and comments of fields are read from
    the module's source, so a page documents what its module exports. A name means what the page's own module means by
    it, else what one room above does: where several define it, nbdev would link to the last."""
    def __init__(self, cfg):
        self.cfg, self.here = cfg, None
        self.modules = [f'{cfg.lib_name}.{m}' for m in order.modules()]
        self.of = {f'{room}.ipynb': f'{cfg.lib_name}.{m}' for m, room in order.modules().items()}

    def begin(self, nb):
        "Remember whose page this is, and say under its badge what it exports."
        path = Path(nb.path_).resolve().relative_to(self.cfg.nbs_path.resolve()).as_posix()
        self.here = self.of.get(path)
        badge = next((c for c in nb.cells if 'colab-badge' in c.source and c.cell_type == 'markdown'), None)
        if not self.here or not badge: return
        source = f'{self.cfg.git_url}/blob/{self.cfg.branch}/nbs/{path}'
        badge.source += (
            f'\n\nThis page is the notebook [nbs/{path}]({source}), imports included; it exports `{self.here}`.')

    def meant(self, syms, s):
        "The entry of nbdev's index for `s`; None where it stays a word."
        if self.here and (own := syms.get(f'{self.here}.{s}')): return own
        if s in syms and s.startswith(self.cfg.lib_name + '.'): return syms[s]
        above = self.modules[:self.modules.index(self.here) if self.here else None]
        there = [m for m in above if f'{m}.{s}' in syms]
        if len(there) != 1: return None
        try: told = reduce(getattr, s.split('.'), importlib.import_module(there[0])).__doc__
        except AttributeError: told = None
        return syms[f'{there[0]}.{s}'] if told else None                # a helper's name is a word like any other

def patch_nbdev(names):
    "Have nbdev ask `names`."
    process, call = NBProcessor.process, exec_show_docs.__call__
    def begins(self):
        names.begin(self.nb)
        return process(self)
    def first(self, cell):
        shows = cell.cell_type == 'code' and ('show_doc(' in cell.source or not getattr(self, 'begun', False))
        if names.here and shows and hasattr(self, 'k'):
            self.k.run_cell(f'from {names.here} import *'); self.begun = True
        return call(self, cell)
    def code(self, sym):
        if not isinstance(res := self[sym], tuple): return None
        module = '.'.join(Path(res[1]).with_suffix('').parts)
        return f'{res[2]}#L{doclinks._lineno(sym.removeprefix(module + "."), res[1])}'
    NBProcessor.process, exec_show_docs.__call__ = begins, first
    NbdevLookup.__getitem__, NbdevLookup.code = lambda self, s: names.meant(self.syms, s), code

def unnumbered(path): return path.with_name(re.sub(r'^\d+[a-zA-Z0-9]*_', '', path.name))

def link_to(page, proc):
    "A pattern for links to a page: from its folder, or by its folder, with any ../ before; no address of Colab."
    folder = page.parent.relative_to(proc).as_posix()
    by_folder = '' if folder == '.' else f'(?:{re.escape(folder)}/)?'
    return rf'(?<![\w/.])((?:\.\./)*{by_folder}){re.escape(page.name)}'

def tidy(text):
    "What nbdev leaves: docstrings that helpers lack, addresses of functions, links in the comments of signatures."
    text = text.replace('*Call self as a function.*', '')
    text = re.sub(r'<(function|factory)( \w+)? at 0x[0-9a-f]+>', r'<\1\2>', text)
    plain = lambda m: re.sub(r'\[`([^`\]]+)`\]\([^)]*\)', r'\1', m[0])
    return re.sub(r'^ *"    .* # .*$', plain, text, flags=re.M)

def rename_pages(proc):
    "Pages get the names that nbdev's index links to: 03_prism.ipynb -> prism.ipynb."
    new = {p: unnumbered(p) for p in proc.rglob('*.ipynb') if unnumbered(p) != p}
    for a, b in new.items():
        if b.exists(): sys.exit(f'two pages would be {b.relative_to(proc)}')
        a.rename(b)
    links = [(re.compile(link_to(a, proc)), rf'\g<1>{b.name}') for a, b in new.items()]
    for p in [*proc.rglob('*.ipynb'), *proc.rglob('*.yml')]:
        text = p.read_text(encoding='utf-8')
        for pattern, name in links: text = pattern.sub(name, text)
        p.write_text(tidy(text), encoding='utf-8')

# --- pages -----------------------------------------------------------------------------------------------------------
def localise(text, base, up):
    "KaTeX from the site itself, and links between pages relative."
    text = re.sub(r'https://cdn\.[\w.]+/npm/katex@[^/"]+/dist', up + 'site_libs/katex', text)
    text = re.sub(f'href="{re.escape(base)}(?=[^"]*\\.html)', f'href="{up or "./"}', text)
    # Quarto loads require.js for notebooks; nothing here asks for it
    text = re.sub(r'<script[^>]*src="https://cdnjs\.[^>]*></script>', '', text)
    text = re.sub(r'<script[^>]*>\s*define\(.jquery.(?:(?!</script>).)*</script>', '', text, flags=re.S)
    return re.sub(r'<img[^>]*colab-badge\.svg[^>]*>', 'Open in Colab', text)        # a picture from elsewhere

def plain(fragment):
    "The text of a piece of HTML."
    return html.unescape(re.sub(r'<[^>]+>', ' ', fragment))

def with_alt(text):
    "Figures that have no text get one, after the heading they stand under."
    parts, heading, n = re.split(r'(<h[1-6][^>]*>.*?</h[1-6]>)', text, flags=re.S), '', 0
    def alt(m):
        nonlocal n
        if ' alt=' in m[0]: return m[0]
        n += 1
        return f'<img alt="{html.escape(f"Figure {n} under the heading: {heading}")}"' + m[0][4:]
    for i, part in enumerate(parts):
        if re.match(r'<h[1-6]', part): heading, n = ' '.join(plain(part).split()), 0
        parts[i] = re.sub(r'<img\b[^>]*>', alt, part)
    return ''.join(parts)

def as_prose(m):
    "Lines of 160 letters and more are text, which is wrapped; shorter ones may be a table."
    lines = html.unescape(re.sub(r'<[^>]+>', '', m[0])).splitlines()
    if max(map(len, lines), default=0) < 160: return m[0]
    return m[0].replace('cell-output-stdout', 'cell-output-stdout prose', 1)

def reachable(text):
    "Outputs and tables that may scroll can be focused; figures have a text."
    region = lambda label: f'tabindex="0" role="region" aria-label="{label}"'
    text = re.sub(r'<div class="(cell-output cell-output-display(?! cell-output-markdown)[^"]*)"([^>]*)>',
                  rf'<div class="\1"\2 {region("Output")}>', with_alt(text))
    text = re.sub(r'<div class="cell-output cell-output-stdout[^"]*".*?</pre>', as_prose, text, flags=re.S)
    text = re.sub(r'<pre\b(?![^>]*tabindex)', '<pre tabindex="0"', text)
    text = re.sub(r'<span class="math display"', r'\g<0> tabindex="0" role="math"', text)
    table = rf'<div class="table-scroll" {region("Table")}>\1</div>'
    return re.sub(r'(<table\b(?:(?!</table>).)*</table>)', table, text, flags=re.S)

def lead_somewhere(text, page, places, source):
    """Links to files of the repository go to its web pages; links to a member that has no heading of its own go to its
    class. `page` is a path in the site, `places` has the ids of each page."""
    folder = posixpath.dirname(page)
    def file(m):
        there = posixpath.normpath(posixpath.join('nbs', folder, m[1]))
        return m[0] if there.startswith('nbs/') else f'href="{source}/{there}"'
    def place(m):
        there, at = posixpath.normpath(posixpath.join(folder, m[1])), m[2]
        if there not in places or at in places[there] or '.' not in at: return m[0]
        short = at.rsplit('.', 1)[0]
        return f'href="{m[1]}' + (f'#{short}"' if short in places[there] else '"')
    text = re.sub(r'href="((?:\./)?\.\./[^"]+)"', file, text)
    return re.sub(r'href="([^"#:]+\.html)#([^"]+)"', place, text)

FETCHED = 'const r = await fetch(offset + "search.json");\n      index = await r.json();'
LOADED = """await new Promise((done, failed) => {
        const s = document.createElement("script");
        Object.assign(s, {src: offset + "search.js", onload: done, onerror: failed});
        document.head.append(s);
      });
      index = window.searchIndex;"""

def search_from_a_script(out):
    "smalldocs fetches its index, which a browser refuses a page that was opened as a file; a script it loads."
    for p in out.rglob('smalldocs.js'):
        text = p.read_text(encoding='utf-8')
        if FETCHED not in text: sys.exit(f'{p}: smalldocs loads its index in another way now')
        p.write_text(text.replace(FETCHED, LOADED), encoding='utf-8')
        index = (out/'search.json').read_text(encoding='utf-8')
        (out/'search.js').write_text(f'window.searchIndex = {index};', encoding='utf-8')

def finish(out, cfg):
    "Rewrite the rendered pages and styles in place."
    base, source = f'{cfg.doc_host}{cfg.doc_baseurl}/', f'{cfg.git_url}/blob/{cfg.branch}'
    pages = {p.relative_to(out).as_posix(): p.read_text(encoding='utf-8') for p in out.rglob('*.html')}
    pages = {p: reachable(localise(text, base, '../' * p.count('/'))) for p, text in pages.items()}
    places = {p: set(re.findall(r'\bid="([^"]+)"', text)) for p, text in pages.items()}
    for p, text in pages.items():
        if re.search(r'(?:src|href)="https://cdn', text): sys.exit(f'{p} asks the network for a script or style')
        (out/p).write_text(lead_somewhere(text, p, places, source), encoding='utf-8')
    fonts = r'@import\s*(?:url\(\s*)?["\']?https?:[^"\')]*["\']?\s*\)?[^;]*;'        # themes fetch them from elsewhere
    for p in out.rglob('*.css'):
        text = p.read_text(encoding='utf-8')
        if (less := re.sub(fonts, '', text)) != text: p.write_text(less, encoding='utf-8')

def render(proc):
    run = partial(subprocess.run, check=True)
    if shutil.which('quarto') and '--smalldocs' not in sys.argv: run(['quarto', 'render', str(proc), '--no-execute'])
    else: run([os.environ.get('SMALLDOCS', 'smalldocs'), 'render', str(proc)])

def mend_anchors(out):
    "A name that is not listed has no heading: a link to it leads to the page of its room."
    pages = {p.resolve(): p.read_text(encoding='utf-8') for p in out.rglob('*.html')}
    ids = {p: set(re.findall(r'\bid="([^"]+)"', text)) for p, text in pages.items()}
    for page, text in pages.items():
        def mended(m, page=page):
            to = (page.parent/m[1]).resolve() if m[1] else page
            return m[0] if to not in ids or m[2] in ids[to] else f'href="{m[1] or page.name}"'
        new = re.sub(r'href="([^":#]*)#([^"]+)"', mended, text)
        if new != text: page.write_text(new, encoding='utf-8')

def main():
    cfg = get_config()
    kx = cfg.config_path/'docs_assets'/'katex'
    fetch(katex, 'dist', kx); fetch(axe, 'axe.min.js', kx.parent/'axe.min.js')
    refresh_quarto_yml(); _build_modidx()
    patch_nbdev(Names(cfg))
    proc = proc_nbs(n_workers=0, force=True)
    rename_pages(proc)
    render(proc)
    out = proc/cfg.doc_path.name
    shutil.copytree(kx, out/'site_libs'/'katex', dirs_exist_ok=True)
    finish(out, cfg)
    search_from_a_script(out)
    mend_anchors(out)
    shutil.rmtree(cfg.doc_path, ignore_errors=True)
    shutil.move(out, cfg.doc_path)
    print(cfg.doc_path)

if __name__ == '__main__': main()
