"""README.md from nbs/index.ipynb, its figures in docs_assets/readme. Reads stored outputs and runs nothing.

    python tools/make_readme.py            # write
    python tools/make_readme.py --check    # exit 1 if what is there differs
"""
import re, shutil, sys
from pathlib import Path
import nbformat
from nbconvert import MarkdownExporter
from nbdev.config import get_config

figures = Path('docs_assets/readme')
head = '<!-- Made from nbs/index.ipynb by `make readme`: edit that, not this. -->\n\n'

def visible(cell):
    "The cell as a reader sees it, without directives; None if it is hidden"
    if cell.cell_type != 'code': return cell
    top = re.match(r'(?:#\s*\|.*\n?|\s*\n)*', cell.source)[0]
    d = {m[0].strip(': '): m[1].strip() for m in re.findall(r'#\s*\|\s*([\w-]+:?)(.*)', top)}
    off = lambda k: d.get(k, 'true').lower() == 'false'
    if 'hide' in d or off('include'): return None
    cell.source = cell.source[len(top):].strip('\n')
    cell.outputs = [o for o in cell.outputs if not (o.output_type == 'stream' and o.name == 'stderr')]
    if 'hide_output' in d or off('output'): cell.outputs = []
    if 'hide_input' in d or off('echo'): cell.metadata['hide'] = True
    return cell

def rebase(line):
    "Links of a notebook in nbs/ as they read from the repository's root"
    here = lambda m: m[1] + str(Path('nbs', m[2])).replace('nbs/../', '')
    return re.sub(r'(\]\()(?!#|/|[a-z]+:)(?:\./)?(?!docs_assets/)([^)\s]+)', here, line)

def readme(nb):
    "(text, {figure name: bytes})"
    nb.cells = [c for c in map(visible, nb.cells) if c is not None and c.source.strip()]
    for c in nb.cells:
        if c.cell_type == 'markdown': c.source = '\n'.join(map(rebase, c.source.split('\n')))
        for data in (o.data for o in c.get('outputs', []) if 'text/markdown' in o.get('data', {})):
            data['text/markdown'] = '\n'.join(map(rebase, data['text/markdown'].split('\n')))
    nb.metadata['language_info'] = {'name': 'python'}
    out = MarkdownExporter()
    for c in nb.cells:
        if c.metadata.get('hide'): c.source = ''
    text, res = out.from_notebook_node(nb)
    pngs = {}
    for i, (old, data) in enumerate(res['outputs'].items(), 1):  # numbered, so that a new cell above renames nothing
        new = f'figure_{i}{Path(old).suffix}'
        text = text.replace(f']({old})', f']({figures}/{new})')
        pngs[new] = data
    text = re.sub(r'```python\n\s*```\n', '', text)
    text = re.sub(r'<style scoped>.*?</style>\n?', '', text, flags=re.S)  # pandas' tables
    text = re.sub(r'^[ \t]+$', '', text, flags=re.M)
    return head + re.sub(r'\n{3,}', '\n\n', text).strip() + '\n', pngs

if __name__ == '__main__':
    cfg = get_config()
    root, nb = cfg.config_path, nbformat.read(cfg.nbs_path/cfg.readme_nb, as_version=4)
    text, pngs = readme(nb)
    dest = root/figures
    if '--check' in sys.argv:
        have = {p.name: p.read_bytes() for p in dest.glob('*')}
        if (root/'README.md').read_text(encoding='utf-8') != text or have != pngs:
            sys.exit('README.md is not what nbs/index.ipynb gives: run `make readme`')
    else:
        shutil.rmtree(dest, ignore_errors=True)
        (root/'README.md').write_text(text, encoding='utf-8')
        for name, data in pngs.items():
            dest.mkdir(parents=True, exist_ok=True)
            (dest/name).write_bytes(data)
