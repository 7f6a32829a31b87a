"""Run notebooks as nbdev's directives say: `#| eval: false` cells never, `#| notest` and `#| slow`
ones only if forced. Without an option outputs are kept in place, as readers see them; --check
writes nothing and only says whether a notebook runs; --out writes a copy with outputs.

    python tools/run_nbs.py nbs/03_prism.ipynb
    python tools/run_nbs.py --force slow nbs/training/train.ipynb
    python tools/run_nbs.py --check nbs/03_prism.ipynb
    python tools/run_nbs.py --out runs/gpu nbs/studies/speed.ipynb
"""
import argparse, contextlib, re, sys
from pathlib import Path
from execnb.nbio import read_nb, write_nb
from execnb.shell import CaptureShell
from nbdev.clean import nbdev_clean
from nbdev.config import get_config

def skipped(cell, flags):
    "Is the cell not run?"
    directives = re.findall(r'^#\|\s*(.*?)\s*$', cell.source, re.M)
    return (cell.cell_type != 'code'
            or any(d in flags or re.match(r'eval:\s*false', d) for d in directives))

def run(path, force=(), check=False, out=None):
    """Run a notebook up to its first error, and return it. Unless `check`, write its outputs back,
    or to a copy in the folder `out`."""
    path = Path(path).resolve()
    nb, shell, cfg = read_nb(path), CaptureShell(path), get_config()
    skip = {c.id for c in nb.cells if skipped(c, set(cfg.tst_flags.split()) - set(force))}
    for cell in nb.cells:      # execnb leaves the outputs of a cell that has none any more
        if cell.id not in skip: cell.outputs = []
    sys.path.insert(0, str(cfg.config_path))
    try:
        with contextlib.chdir(path.parent):
            shell.run_all(nb, exc_stop=True, preproc=lambda cell: cell.id in skip)
    except Exception: sys.exit(shell.prettytb(fname=path))
    if check: return nb
    if out: path = out/path.name
    write_nb(nb, path)
    nbdev_clean.__wrapped__(fname=str(path))
    return nb

if __name__ == '__main__':
    p = argparse.ArgumentParser()
    p.add_argument('notebooks', nargs='+')
    p.add_argument('--force', action='append', default=[])
    p.add_argument('--check', action='store_true')
    p.add_argument('--out', type=Path)
    a = p.parse_args()
    for f in a.notebooks: run(f, a.force, a.check, a.out)
