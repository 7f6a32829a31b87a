"""README.md from nbs/index.ipynb, its figures in docs_assets/readme. Reads stored outputs and runs
nothing.

    python tools/make_readme.py
"""
import base64, json, re, shutil
from pathlib import Path
from order import nbs, root

FIGURES = Path('docs_assets/readme')

def rebased(text):
    "Links of a notebook in nbs/ as they read from the repository's root"
    def link(m): return m[1] + Path('nbs', m[2]).as_posix().replace('nbs/../', '')
    return re.sub(r'(\]\()(?!#|/|[a-z]+:)([^)\s]+)', link, text)

def shown(cell, pngs):
    "A cell as Markdown; figures go to `pngs`."
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown': return rebased(source)
    directives, source = re.match(r'((?:#\|[^\n]*\n)*)(.*)', source, re.S).groups()
    if '#| hide' in directives: return ''
    parts = [] if '#| echo: false' in directives else [f'```python\n{source}\n```']
    for out in cell['outputs']:
        data = out.get('data', {})
        if 'image/png' in data:
            name = f'figure_{len(pngs) + 1}.png'
            pngs[name] = base64.b64decode(data['image/png'])
            parts.append(f'![png]({FIGURES}/{name})')
        elif out['output_type'] == 'stream' and out['name'] == 'stdout':
            parts.append('    ' + '    '.join(out['text']))
    return '\n\n'.join(parts)

if __name__ == '__main__':
    pngs = {}
    cells = json.loads((nbs/'index.ipynb').read_text(encoding='utf-8'))['cells']
    parts = ['<!-- Made from nbs/index.ipynb -->',
             *(shown(c, pngs) for c in cells)]
    (root/'README.md').write_text('\n\n'.join(p.strip('\n') for p in parts if p) + '\n',
                                  encoding='utf-8')
    shutil.rmtree(root/FIGURES, ignore_errors=True)
    (root/FIGURES).mkdir(parents=True)
    for name, png in pngs.items(): (root/FIGURES/name).write_bytes(png)
