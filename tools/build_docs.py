"""The docs site in _docs/: nbs/ -> _proc/ -> _docs/. Pages are rendered by Quarto where it is installed, else by smalldocs.

Either way a page asks nothing of another server: equations are shown by the site's own copy of KaTeX, in letters that the reader has. Whatever
is wide scrolls by itself and can be reached by keyboard; and figures say what they are to those who do not see them.

    python tools/build_docs.py [--smalldocs]
"""
import html, os, re, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path
from nbdev.config import get_config
from nbdev.doclinks import _build_modidx
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
        with tarfile.open(next(Path(tmp).glob('*.tgz'))) as t: t.extractall(tmp, filter='data')
        dest.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(tmp)/'package'/what, dest)

def know_later_names():
    "Signatures may name what a later cell defines: before a page's cells run, import the module that it exports"
    begin = exec_show_docs.begin
    def first(self):
        begin(self)
        mods = [v[0] for c in self.nb.cells for k, v in (getattr(c, 'directives_', None) or {}).items() if k == 'default_exp']
        for m in mods: self.k.run_cell(f'from {get_config().lib_name}.{m} import *')
    exec_show_docs.begin = first

def rename_pages(proc):
    "Pages get the names that nbdev's index links to: 03_prism.ipynb -> prism.ipynb"
    new = {p: p.with_name(re.sub(r'^\d+[a-zA-Z0-9]*_', '', p.name)) for p in proc.rglob('*.ipynb')}
    new = {a: b for a, b in new.items() if a != b}
    for a, b in new.items():
        if b.exists(): sys.exit(f'two pages would be {b.name}')
        a.rename(b)
    for p in [*proc.rglob('*.ipynb'), *proc.rglob('*.yml')]:
        text = p.read_text(encoding='utf-8')
        for a, b in new.items(): text = text.replace(a.name, b.name)
        p.write_text(text, encoding='utf-8')

def localise(text, base, up):
    "KaTeX from the site itself, and links between pages relative"
    text = re.sub(r'https://cdn\.[\w.]+/npm/katex@[\d.]+/dist', up + 'site_libs/katex', text)
    text = re.sub(f'href="{re.escape(base)}(?=[^"]*\\.html)', f'href="{up or "./"}', text)
    text = re.sub(r'<script[^>]*src="https://cdnjs\.[^>]*></script>', '', text)        # Quarto loads require.js for notebooks; nothing here asks for it
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
    text = re.sub(r'<div class="(cell-output cell-output-display(?! cell-output-markdown)[^"]*)">', r'<div class="\1" tabindex="0" role="region" aria-label="Output">', text)
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
        return m[0] if page not in places or at in places[page] else f'href="{m[1]}' + (f'#{short}"' if (short := at.rsplit('.', 1)[0]) in places[page] else '"')
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
        if (less := re.sub(r'@import\s+url\(["\']?https?:[^)]*\)[^;]*;', '', text)) != text: p.write_text(less, encoding='utf-8')

def render(proc):
    if shutil.which('quarto') and '--smalldocs' not in sys.argv: subprocess.run(['quarto', 'render', str(proc), '--no-execute'], check=True)
    else: subprocess.run([os.environ.get('SMALLDOCS', 'smalldocs'), 'render', str(proc)], check=True)

if __name__ == '__main__':
    cfg = get_config()
    kx = cfg.config_path/'docs_assets'/'katex'
    fetch(katex, 'dist', kx); fetch(axe, 'axe.min.js', kx.parent/'axe.min.js')
    refresh_quarto_yml(); _build_modidx(); nbdev_sidebar.__wrapped__()
    know_later_names()
    proc = proc_nbs(n_workers=0, force=True)
    rename_pages(proc)
    render(proc)
    out = proc/cfg.doc_path.name
    shutil.copytree(kx, out/'site_libs'/'katex', dirs_exist_ok=True)
    finish(out, cfg)
    shutil.rmtree(cfg.doc_path, ignore_errors=True)
    shutil.move(out, cfg.doc_path)
    print(cfg.doc_path)
