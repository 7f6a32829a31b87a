"""Every notebook runs from a fresh process, without its `#| eval: false` and `#| slow` cells, and
prints what is stored in it, also with kernels of another machine. Nothing is written."""
import multiprocessing, os, re, sys
import pytest

import house, order
from order import root

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

# --- what a cell prints ---
NUMBER = re.compile(r'(?<![\w.#])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?')
UNREPEATED = re.compile(r' at 0x\w+|T_[0-9a-f]{5}|tmp\w{8}')    # addresses, styles, folders
# times, memory, and what else is of the machine
MACHINE = re.compile(r'\d ?(s|ms|MB|GB|it/s|cores?|threads?)\b|seconds|s/pass|onednn', re.I)

def printed(cell):
    "The text of a cell's outputs"
    shown = [o.get('text') or o.get('data', {}).get('text/html')
             or o.get('data', {}).get('text/plain', '') for o in cell.outputs]
    return UNREPEATED.sub('', '\n'.join(''.join(s) for s in shown))

def value_and_unit(number):
    "'1.50' -> 1.5, .01"
    digits, _, power = number.replace(',', '').partition('e')
    return float(number.replace(',', '')), 10. ** (int(power or 0) - len(digits.partition('.')[2]))

def alike(a, b):
    """Do two numbers differ by one unit in their last digit at most, or in what processors and
    rounding change?"""
    (x, unit), (y, other) = map(value_and_unit, (a, b))
    return abs(x - y) <= max(1.01 * unit, 1.01 * other, 1e-5, 2e-6 * abs(x))

def differences(was, now):
    "A line for each that differs; none for a text about the machine"
    if MACHINE.search(was + now): return []
    def words(line): return NUMBER.sub('#', line).split()
    pairs = [*zip(was.splitlines(), now.splitlines())]
    out = [f'stored {a!r}, printed {b!r}' for a, b in pairs if words(a) != words(b)
           or not all(map(alike, NUMBER.findall(a), NUMBER.findall(b)))]
    return out or ['more or fewer lines'] * (was.count('\n') != now.count('\n'))

@pytest.mark.parametrize('was, now, same', [
    ('a 1.50 [.3, 4e-08]', 'a 1.51 [.4, 9e-09]', True), ('1.50', '1.52', False), ('a', 'b', False),
    ('1,023 of 7', '1,024 of 7', True), ('1,023', '1,033', False), ('1\n2', '1', False),
    ('in 3 s', 'in 5 s', True)])
def test_numbers_are_compared_to_the_printed_digit(was, now, same):
    assert (not differences(was, now)) == same

def run_notebook(nb, log, force=()):
    "In a process of its own; what it says goes to a file."
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1); os.dup2(out, 2)
    os.chdir(root)
    import kernels, run_nbs
    kernels.install()
    stored = {c.id: printed(c) for c in run_nbs.read_nb(nb).cells if c.cell_type == 'code'}
    ran = run_nbs.run(nb, force, check=True)
    lines = [f'cell {c.id}: {line}' for c in ran.cells
             if c.cell_type == 'code' for line in differences(stored[c.id], printed(c))]
    sys.exit(order.room_of(nb) != TRAINED and '\n'.join(lines) or 0)

# Rounding errors grow with the steps of a training, so this prints other numbers elsewhere.
TRAINED = 'training/train'

# A page that only asks a question runs at night
NOTEBOOKS = [pytest.param(nb, marks=[pytest.mark.slow] * house.study(nb))
             for nb in order.notebooks()]

def passes(fresh, nb, log, **kw):
    p = fresh.Process(target=run_notebook, args=(nb, log), kwargs=kw)
    p.start(); p.join(1800)
    if p.is_alive(): p.kill(); p.join()
    assert p.exitcode == 0, log.read_text(errors='replace')[-6000:]

@pytest.mark.parametrize('nb', NOTEBOOKS, ids=order.room_of)
def test_runs(nb, fresh, tmp_path): passes(fresh, nb, tmp_path/'log')

# Their slow cells need only what the repository and `make` bring.
SLOW = ('index start/ten_minutes start/which_policy start/when_it_helps '
        '05_stochastic_remasking 08_experiments studies/equal peers/adaptive').split()

@pytest.mark.slow
@pytest.mark.parametrize('page', SLOW)
def test_slow_cells_of_front_pages_print_what_is_stored(page, fresh, tmp_path):
    passes(fresh, order.nbs/f'{page}.ipynb', tmp_path/'log', force=['slow'])
