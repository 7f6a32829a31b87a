"""Every notebook runs from a fresh process, without its `#| eval: false` and `#| slow` cells.
Nothing is written."""
import multiprocessing, os, sys
from pathlib import Path
import pytest

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root/'tools'))
import order

# Imported once, in a process that the others are forked from: of this library nothing, so that a
# notebook which forgets an import fails.
OTHERS = ['torch', 'pandas', 'pyarrow.parquet', 'matplotlib.pyplot', 'seaborn', 'IPython',
          'execnb.shell',
          'nbdev.clean', 'nbdev.process', 'fastcore.test', 'transformers.modeling_utils',
          'scipy.stats']

@pytest.fixture(scope='module')
def fresh():
    """What starts processes that have these imported, and no backend chosen: a notebook draws
    inline."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(OTHERS)
    backend = os.environ.pop('MPLBACKEND', None)
    # the server is there, with this environment
    p = context.Process(target=os.getpid); p.start(); p.join()
    yield context
    if backend is not None: os.environ['MPLBACKEND'] = backend

def run_notebook(nb, log):
    "In a process of its own; what it says goes to a file."
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1); os.dup2(out, 2)
    sys.path.insert(0, str(root/'tools'))
    os.chdir(root)
    import run_nbs
    run_nbs.run(nb, check=True)

# hosts/where is run by its own test
NOTEBOOKS = [nb for nb in order.notebooks() if order.room_of(nb) != 'hosts/where']

@pytest.mark.parametrize('nb', NOTEBOOKS, ids=order.room_of)
def test_runs(nb, fresh, tmp_path):
    p = fresh.Process(target=run_notebook, args=(nb, tmp_path/'log'))
    p.start(); p.join(600)
    if p.is_alive(): p.kill(); p.join()
    assert p.exitcode == 0, (tmp_path/'log').read_text(errors='replace')[-6000:]
