"""The docs site in _docs/, without Quarto: nbs/ -> _proc/ -> _docs/. It shows equations with no network, by its own copy of KaTeX.

Where Quarto is at hand, `nbdev_docs` makes the same site with it.
"""
import os, re, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path
from nbdev.config import get_config
from nbdev.doclinks import _build_modidx
from nbdev.processors import exec_show_docs
from nbdev.quarto import nbdev_sidebar, refresh_quarto_yml
from nbdev.serve import proc_nbs

katex = 'katex@0.16.11'

def fetch_katex(dest):
    "KaTeX's dist folder from the npm registry, once"
    if (dest/'katex.min.js').exists(): return
    if not shutil.which('npm'): sys.exit(f'no npm here, and no copy of {katex} in {dest}')
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(['npm', 'pack', katex, '--silent'], cwd=tmp, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(tmp).glob('*.tgz'))) as t: t.extractall(tmp, filter='data')
        shutil.copytree(Path(tmp)/'package'/'dist', dest, dirs_exist_ok=True)

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

def localise(out, base):
    "KaTeX from the site itself, and links between pages relative"
    for p in out.rglob('*.html'):
        up = '../'*(len(p.relative_to(out).parts) - 1)
        text = re.sub(r'https://cdn\.[\w.]+/npm/katex@[\d.]+/dist', up + 'site_libs/katex', p.read_text(encoding='utf-8'))
        text = re.sub(f'href="{re.escape(base)}(?=[^"]*\\.html)', f'href="{up or "./"}', text)
        if 'https://cdn.' in text: sys.exit(f'{p} asks the network for a script or style')
        p.write_text(text, encoding='utf-8')

if __name__ == '__main__':
    cfg = get_config()
    kx = cfg.config_path/'docs_assets'/'katex'
    fetch_katex(kx)
    refresh_quarto_yml(); _build_modidx(); nbdev_sidebar.__wrapped__()
    know_later_names()
    proc = proc_nbs(n_workers=0, force=True)
    rename_pages(proc)
    subprocess.run([os.environ.get('SMALLDOCS', 'smalldocs'), 'render', str(proc)], check=True)
    out = proc/cfg.doc_path.name
    shutil.copytree(kx, out/'site_libs'/'katex')
    localise(out, f'{cfg.doc_host}{cfg.doc_baseurl}/')
    shutil.rmtree(cfg.doc_path, ignore_errors=True)
    shutil.move(out, cfg.doc_path)
    print(cfg.doc_path)
