"""The docs site in _docs/: nbs/ -> _proc/ -> _docs/. Pages are rendered by Quarto where it is installed, else by smalldocs.

Either way a page asks nothing of another server: equations are shown by the site's own copy of KaTeX, in letters that the reader has. Whatever
is wide scrolls by itself and can be reached by keyboard; and figures say what they are to those who do not see them.

    python tools/build_docs.py [--smalldocs]
"""
import html, importlib, os, re, shutil, subprocess, sys, tarfile, tempfile
from functools import reduce
from pathlib import Path
from nbdev import doclinks
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup, _build_modidx
from nbdev.process import NBProcessor
from nbdev.processors import exec_show_docs
from nbdev.quarto import nbdev_sidebar, refresh_quarto_yml
from nbdev.serve import proc_nbs

katex, axe = 'katex@0.16.11', 'axe-core@4.10.3'      # axe-core is what tests/test_site.py looks with; it is no part of the site

def fetch(package, what, dest):
    "A folder or file of an npm package, once"
    if dest.exists(): return
    if not shutil.which('npm'): sys.exit(f'no npm here, and no copy of {package} in {dest}')
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(['npm', 'pack', package, '--silent'], cwd=tmp, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(tmp).glob('*.tgz'))) as t: t.extractall(tmp, **(dict(filter='data') if hasattr(tarfile, 'data_filter') else {}))
        dest.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(tmp)/'package'/what, dest)

def names_of_the_page():
    """What a page documents is what its module exports: signatures may name what a later cell defines, and comments of fields are read from the module's
    source. And a name means what the page's own module means by it, else what one chapter before it does: several have a `look`, and nbdev would link to the last."""
    names = {p.name: f'{get_config().lib_name}.{found[1]}' for p in sorted(get_config().nbs_path.glob('*.ipynb')) if (found := re.search(r'#\|\s*default_exp (\w+)', p.read_text(encoding='utf-8')))}
    modules, source = list(names.values()), f'{get_config().git_url}/blob/{get_config().branch}'
    process, call, here = NBProcessor.process, exec_show_docs.__call__, [None]
    def begins(self):
        here[0] = names.get(Path(self.nb.path_).name)
        badge = next((c for c in self.nb.cells if 'colab-badge' in c.source and c.cell_type == 'markdown'), None)
        if here[0] and badge: badge.source += f'\n\nThis chapter is [nbs/{Path(self.nb.path_).name}]({source}/nbs/{Path(self.nb.path_).name}), imports included; it exports `{here[0]}`.'
        return process(self)
    def first(self, cell):
        if here[0] and cell.cell_type == 'code' and hasattr(self, 'k') and ('show_doc(' in cell.source or not getattr(self, 'begun', False)):
            self.k.run_cell(f'from {here[0]} import *'); self.begun = True
        return call(self, cell)
    def meant(self, s):
        if here[0] and (own := self.syms.get(f'{here[0]}.{s}')): return own
        if s in self.syms and s.startswith(get_config().lib_name + '.'): return self.syms[s]
        there = [m for m in modules[:modules.index(here[0]) if here[0] else None] if f'{m}.{s}' in self.syms]
        if len(there) != 1: return None
        try: told = reduce(getattr, s.split('.'), importlib.import_module(there[0])).__doc__
        except AttributeError: told = None
        return self.syms[f'{there[0]}.{s}'] if told else None                # a helper's name is a word like any other
    def code(self, sym):
        if not isinstance(res := self[sym], tuple): return None
        module = '.'.join(Path(res[1]).with_suffix('').parts)
        return f'{res[2]}#L{doclinks._lineno(sym.removeprefix(module + "."), res[1])}'
    NBProcessor.process, exec_show_docs.__call__, NbdevLookup.__getitem__, NbdevLookup.code = begins, first, meant, code

def rename_pages(proc):
    "Pages get the names that nbdev's index links to: 03_prism.ipynb -> prism.ipynb"
    new = {p: p.with_name(re.sub(r'^\d+[a-zA-Z0-9]*_', '', p.name)) for p in proc.rglob('*.ipynb')}
    new = {a: b for a, b in new.items() if a != b}
    for a, b in new.items():
        if b.exists(): sys.exit(f'two pages would be {b.name}')
        a.rename(b)
    for p in [*proc.rglob('*.ipynb'), *proc.rglob('*.yml')]:
        text = p.read_text(encoding='utf-8')
        for a, b in new.items(): text = re.sub(r'(?<![\w/])' + re.escape(a.name), b.name, text)        # not in the addresses of Colab
        text = text.replace('*Call self as a function.*', '')     # what nbdev finds where a helper has no docstring
        text = re.sub(r'<(function|factory)( \w+)? at 0x[0-9a-f]+>', r'<\1\2>', text)
        text = re.sub(r'^ *"    .* # .*$', lambda m: re.sub(r'\[`([^`\]]+)`\]\([^)]*\)', r'\1', m[0]), text, flags=re.M)     # comments of signatures hold no links
        p.write_text(text, encoding='utf-8')

def localise(text, base, up):
    "KaTeX from the site itself, and links between pages relative"
    text = re.sub(r'https://cdn\.[\w.]+/npm/katex@[^/"]+/dist', up + 'site_libs/katex', text)
    text = re.sub(f'href="{re.escape(base)}(?=[^"]*\\.html)', f'href="{up or "./"}', text)
    text = re.sub(r'<script[^>]*src="https://cdnjs\.[^>]*></script>', '', text)        # Quarto loads require.js for notebooks; nothing here asks for it
    text = re.sub(r'<script[^>]*>\s*define\(.jquery.(?:(?!</script>).)*</script>', '', text, flags=re.S)
    return re.sub(r'<img[^>]*colab-badge\.svg[^>]*>', 'Open in Colab', text)        # a picture from elsewhere

def reachable(text):
    "Figures have a text of their own, after the heading they stand under; outputs and tables that may scroll can be focused"
    parts, heading, out, n = re.split(r'(<h[1-6][^>]*>.*?</h[1-6]>)', text, flags=re.S), '', [], 0
    for part in parts:
        if re.match(r'<h[1-6]', part): heading, n = ' '.join(html.unescape(re.sub(r'<[^>]+>', ' ', part)).split()), 0
        def alt(m):
            nonlocal n
            if ' alt=' in m[0]: return m[0]
            n += 1
            return f'<img alt="{html.escape(f"Figure {n} under the heading: {heading}")}"' + m[0][4:]
        out.append(re.sub(r'<img\b[^>]*>', alt, part))
    text = ''.join(out)
    text = re.sub(r'<div class="(cell-output cell-output-display(?! cell-output-markdown)[^"]*)"([^>]*)>', r'<div class="\1"\2 tabindex="0" role="region" aria-label="Output">', text)
    def prose(m): return m[0] if max(map(len, html.unescape(re.sub(r'<[^>]+>', '', m[0])).splitlines()), default=0) < 160 else m[0].replace('cell-output-stdout', 'cell-output-stdout prose', 1)
    text = re.sub(r'<div class="cell-output cell-output-stdout[^"]*".*?</pre>', prose, text, flags=re.S)        # lines so long are text, which is wrapped; shorter ones may be a table
    text = re.sub(r'<pre\b(?![^>]*tabindex)', '<pre tabindex="0"', text)
    text = re.sub(r'<span class="math display"', r'\g<0> tabindex="0" role="math"', text)
    return re.sub(r'(<table\b(?:(?!</table>).)*</table>)', r'<div class="table-scroll" tabindex="0" role="region" aria-label="Table">\1</div>', text, flags=re.S)

def lead_somewhere(text, places, source):
    "Links to files of the repository go to its web pages; links to a member that has no heading of its own go to its class"
    text = re.sub(r'href="(?:\./)?\.\./([^"]+)"', lambda m: f'href="{source}/{m[1]}"', text)
    def place(m):
        page, at = m[1].removeprefix('./'), m[2]
        return m[0] if page not in places or at in places[page] or '.' not in at else f'href="{m[1]}' + (f'#{short}"' if (short := at.rsplit('.', 1)[0]) in places[page] else '"')
    return re.sub(r'href="([^"#:]+\.html)#([^"]+)"', place, text)

def finish(out, cfg):
    base, source = f'{cfg.doc_host}{cfg.doc_baseurl}/', f'{cfg.git_url}/blob/{cfg.branch}'
    pages = {p: reachable(localise(p.read_text(encoding='utf-8'), base, '../'*(len(p.relative_to(out).parts) - 1))) for p in out.rglob('*.html')}
    places = {p.relative_to(out).as_posix(): set(re.findall(r'\bid="([^"]+)"', text)) for p, text in pages.items()}
    for p, text in pages.items():
        if re.search(r'(?:src|href)="https://cdn', text): sys.exit(f'{p} asks the network for a script or style')
        p.write_text(lead_somewhere(text, places, source), encoding='utf-8')
    for p in out.rglob('*.css'):        # themes fetch their letters from elsewhere
        text = p.read_text(encoding='utf-8')
        if (less := re.sub(r'@import\s*(?:url\(\s*)?["\']?https?:[^"\')]*["\']?\s*\)?[^;]*;', '', text)) != text: p.write_text(less, encoding='utf-8')

def render(proc):
    if shutil.which('quarto') and '--smalldocs' not in sys.argv: subprocess.run(['quarto', 'render', str(proc), '--no-execute'], check=True)
    else: subprocess.run([os.environ.get('SMALLDOCS', 'smalldocs'), 'render', str(proc)], check=True)

if __name__ == '__main__':
    cfg = get_config()
    kx = cfg.config_path/'docs_assets'/'katex'
    fetch(katex, 'dist', kx); fetch(axe, 'axe.min.js', kx.parent/'axe.min.js')
    refresh_quarto_yml(); _build_modidx(); nbdev_sidebar.__wrapped__()
    names_of_the_page()
    proc = proc_nbs(n_workers=0, force=True)
    rename_pages(proc)
    render(proc)
    out = proc/cfg.doc_path.name
    shutil.copytree(kx, out/'site_libs'/'katex', dirs_exist_ok=True)
    finish(out, cfg)
    shutil.rmtree(cfg.doc_path, ignore_errors=True)
    shutil.move(out, cfg.doc_path)
    print(cfg.doc_path)
