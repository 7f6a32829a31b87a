"""Run notebooks as nbdev's directives say: `#| eval: false` cells never, `#| notest` and `#| slow` ones only if forced.

    python tools/run_nbs.py nbs/03_prism.ipynb               # in place: outputs are kept, as readers see them
    python tools/run_nbs.py --force slow nbs/training/pretraining.ipynb
    python tools/run_nbs.py --check nbs/03_prism.ipynb       # writes nothing: only says whether it runs
    python tools/run_nbs.py --out runs/gpu nbs/experiments/speed.ipynb    # a copy with outputs there
"""
import argparse, contextlib, sys, time
from pathlib import Path
from execnb.nbio import read_nb, write_nb
from execnb.shell import CaptureShell
from nbdev.clean import nbdev_clean
from nbdev.config import get_config
from nbdev.process import NBProcessor

def skipped(nb, force=()):
    "Ids of the cells of notebook file `nb` that are not run"
    flags = set(get_config().tst_flags.split()) - set(force)
    def skip(cell):
        d = getattr(cell, 'directives_', None) or {}
        return (cell.cell_type != 'code' or 'nbdev_export(' in cell.source  # the last cell exports: not our work
                or d.get('eval:', [''])[0].lower() == 'false' or bool(flags & d.keys()))
    return {c.id for c in NBProcessor(nb, process=True).nb.cells if skip(c)}

def run(path, force=(), check=False, out=None):
    "Run a notebook up to its first error. Unless `check`, write its outputs back, or to a copy in the folder `out`."
    path = Path(path).resolve()
    skip, nb, shell = skipped(path, force), read_nb(path), CaptureShell(path)
    for cell in nb.cells:      # execnb leaves the outputs of a cell that has none any more
        if cell.cell_type == 'code' and cell.id not in skip: cell.outputs = []
    sys.path.insert(0, str(get_config().config_path))
    try:
        with contextlib.chdir(path.parent):
            shell.run_all(nb, exc_stop=True, preproc=lambda cell: cell.id in skip)
    except Exception: sys.exit(shell.prettytb(fname=path))
    if check: return
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out/path.name
    write_nb(nb, path)
    nbdev_clean.__wrapped__(fname=str(path))

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('notebooks', nargs='+')
    p.add_argument('--force', action='append', default=[], metavar='FLAG', help='run cells marked #| FLAG too')
    p.add_argument('--check', action='store_true', help='write nothing')
    p.add_argument('--out', type=Path, metavar='FOLDER', help='write copies there')
    a = p.parse_args()
    for f in a.notebooks:
        start = time.time()
        run(f, a.force, a.check, a.out)
        print(f'{f}: {time.time() - start:.1f} s')
