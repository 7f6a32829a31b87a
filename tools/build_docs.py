"""The docs site in _docs/: nbs/ -> _proc/ -> _docs/. Quarto renders the pages where it is
installed, else smalldocs.

Either way a page asks nothing of another server: equations are shown by the site's own copy of
KaTeX, in fonts that the reader has. Wide things scroll by themselves and can be reached by
keyboard.

    python tools/build_docs.py
"""
import base64, hashlib, posixpath, re, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path
from nbdev.config import get_config
from nbdev.doclinks import _build_modidx, NbdevLookup
from nbdev.processors import exec_show_docs
from nbdev.quarto import refresh_quarto_yml
from nbdev.serve import proc_nbs
import live, order

# npm packages: their SHA-512 as npm publishes it, and what goes where in docs_assets. axe-core is
# for tests/test_site.py; the site has none of it.
PACKAGES = {
    'katex@0.16.11': ('RQrI8rlHY92OLf3rho/Ts8i/XvjgguEjOkO1BEXcU3N8'
                      'BqPpSzBNwV/G0Ukr+P/l3ivvJUE/Fa/CwbS6HesGNQ==', {'dist': 'katex'}),
    'axe-core@4.10.3': ('Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIc'
                        'rgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==',
                        {'axe.min.js': 'axe.min.js'}),
    'onnxruntime-web@1.30.0': ('q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZ'
                               'ClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==',
                               {f'dist/{name}': f'live/{name}' for name in live.RUNTIME})}

def fetch(package, sha512, files, assets):
    "Copy files or folders of an npm package to `assets`, once. SystemExit for another package."
    if all((assets/dest).exists() for dest in files.values()): return
    if not shutil.which('npm'):
        sys.exit(f'{package}: npm is not installed, which fetches it once; expected Node.js, as of '
                 'apt-get install npm, or of nodejs.org')
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(['npm', 'pack', package, '--silent'], cwd=tmp, check=True,
                       stdout=subprocess.DEVNULL)
        archive = next(Path(tmp).glob('*.tgz'))
        found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != sha512: sys.exit(f'{package}: npm gave sha512 {found}; expected {sha512}')
        safe = dict(filter='data') if hasattr(tarfile, 'data_filter') else {}     # since 3.11.4
        with tarfile.open(archive) as t: t.extractall(tmp, **safe)
        for source, dest in files.items(): shutil.move(Path(tmp)/'package'/source, assets/dest)

def link_only_names_of_one_module(cfg):
    """nbdev links a word to the last module that defines it; a word that several define stays a
    word."""
    def meant(self, s):
        if s.startswith(f'{cfg.lib_name}.'): return self.syms.get(s)
        homes = [m for m in order.modules() if f'{cfg.lib_name}.{m}.{s}' in self.syms]
        return self.syms[f'{cfg.lib_name}.{homes[0]}.{s}'] if len(homes) == 1 else None
    NbdevLookup.__getitem__ = meant

def show_with_names_of_the_module(cfg):
    "Signatures may name what a later cell defines: a page begins with what it exports."
    begin = exec_show_docs.begin
    def begin_with_names(self):
        begin(self)
        for module in order.exports(Path(self.nb.path_)):
            self.k.run_cell(f'from {cfg.lib_name}.{module} import *')
    exec_show_docs.begin = begin_with_names

def rename_pages(proc):
    "Pages get the names that nbdev's index links to: 03_prism.ipynb -> prism.ipynb."
    for page in proc.glob('[0-9]*.ipynb'): page.rename(proc/re.sub(r'^\d+_', '', page.name))
    for path in [*proc.rglob('*.ipynb'), *proc.rglob('*.yml')]:
        text = path.read_text(encoding='utf-8')
        # no address of Colab
        text = re.sub(r'(?<![\w/.])((?:\.\./)*)\d\d_(\w+\.ipynb)', r'\1\2', text)
        path.write_text(re.sub(r'<(function|factory)( \w+)? at 0x[0-9a-f]+>', r'<\1\2>', text),
                        encoding='utf-8')

def finished(text, page, ids, cfg):
    """The HTML of a page: nothing from elsewhere, links that lead somewhere, and what scrolls can
    be focused."""
    up, base = '../' * page.count('/'), re.escape(f'{cfg.doc_host}{cfg.doc_baseurl}/')
    text = re.sub(r'https://cdn\.[\w.]+/npm/katex@[^/"]+/dist', f'{up}site_libs/katex', text)
    text = re.sub(f'href="{base}(?=[^"]*\\.html)', f'href="{up or "./"}', text)
    # a name in a comment of a signature is no link
    text = re.sub(rf'\[(`[\w.]+`)\]\({base}[^)]*\)', r'\1', text)
    # Quarto's require.js
    text = re.sub(r'<script[^>]*src="https://cdnjs\.[^>]*></script>', '', text)
    text = re.sub(r'<img[^>]*colab-badge\.svg[^>]*>', 'Open in Colab', text)
    text = re.sub(r'<img(?![^>]* alt=)', '<img alt="Figure"', text)
    text = re.sub(r'<(pre|span class="math display")(?![^>]*tabindex)', r'<\1 tabindex="0"', text)
    scrolls = 'tabindex="0" role="region" aria-label'
    text = re.sub(r'(<div class="cell-output cell-output-display(?! cell-output-markdown)[^>]*)>',
                  rf'\1 {scrolls}="Output">', text)
    text = re.sub(r'(<table\b.*?</table>)',
                  rf'<div class="table-scroll" {scrolls}="Table">\1</div>', text, flags=re.S)
    folder = posixpath.dirname(page)
    def to_repository(m):
        path = posixpath.normpath(posixpath.join('nbs', folder, m[1]))
        return m[0] if path.startswith('nbs/') else f'href="{cfg.git_url}/blob/{cfg.branch}/{path}"'
    def to_heading(m): # a name without a heading of its own: its class, or the page
        target = posixpath.normpath(posixpath.join(folder, m[1])) if m[1] else page
        near = [name for name in (m[2], m[2].rpartition('.')[0]) if name in ids.get(target, [m[2]])]
        return f'href="{m[1]}#{near[0]}"' if near else f'href="{m[1] or posixpath.basename(page)}"'
    text = re.sub(r'href="((?:\./)?\.\./[^"]+)"', to_repository, text)
    return re.sub(r'href="([^":#]*)#([^"]+)"', to_heading, text)

def finish(out, cfg):
    "Rewrite the rendered pages and styles in place."
    texts = {p: p.read_text(encoding='utf-8') for p in out.rglob('*.html')}
    pages = {p: p.relative_to(out).as_posix() for p in texts}
    ids = {pages[p]: set(re.findall(r'\bid="([^"]+)"', text)) for p, text in texts.items()}
    for p, text in texts.items(): p.write_text(finished(text, pages[p], ids, cfg), encoding='utf-8')
    for p in out.rglob('*.css'):        # themes fetch fonts
        text = p.read_text(encoding='utf-8')
        # an address may hold semicolons
        fonts = r'@import\s*(?:url\(\s*)?["\']?https?:[^"\')]*["\']?\s*\)?[^;]*;'
        p.write_text(re.sub(fonts, '', text), encoding='utf-8')

def main():
    cfg = get_config()
    assets = cfg.config_path/'docs_assets'
    for package, (sha512, files) in PACKAGES.items(): fetch(package, sha512, files, assets)
    refresh_quarto_yml()
    _build_modidx()
    link_only_names_of_one_module(cfg)
    show_with_names_of_the_module(cfg)
    proc = proc_nbs(n_workers=0, force=True)
    rename_pages(proc)
    quarto = ['quarto', 'render', proc, '--no-execute']
    subprocess.run(quarto if shutil.which('quarto') else ['smalldocs', 'render', proc], check=True)
    out = proc/cfg.doc_path.name
    shutil.copytree(assets/'katex', out/'site_libs'/'katex', dirs_exist_ok=True)
    finish(out, cfg)
    live.build(out/'site_libs'/'live')
    shutil.rmtree(cfg.doc_path, ignore_errors=True)
    shutil.move(out, cfg.doc_path)
    print(cfg.doc_path)

if __name__ == '__main__': main()
