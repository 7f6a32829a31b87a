"""What the tests of figures share."""
import math, struct

import numpy as np
import pyarrow as pa
import pytest
import torch
from rich.console import Console

from navira.evaluation.perplexity import eos_rules
from navira.experiments.cells import cell_key, settled
from navira.experiments.old_sweep import cells, read_sweep
from navira.experiments.old_store import by_step, checksums, claim, open_store, write_table
from navira.experiments.old_run import describe
from navira.experiments.old_results import read
from navira.experiments.report import report

SLOPES = {'backbone': 0., 'prism': 3., 'navira-det': 4., 'navira': 5., 'prism-stochastic': 3.}

ETAS = [.02, .04, .08]

GRID = dict(
    budgets=[128],
    n=24,
    batch_size=24,
    metrics=['entropy', 'perplexity'],
    entries=[
        dict(policy='backbone', budgets=[64, 128]),
        *[dict(policy=p, vary=dict(eta=ETAS)) for p in SLOPES if p != 'backbone'],
    ],
)

def coordinates(cell, T):
    """entropy, log-perplexity, tokens remasked: straight lines from the backbone with as many steps, (4.3, 6, 0) at
    128; half of them stand .1 higher"""
    r = 2 * settled(cell).get('eta', 0.) * T**.5 * (cell.policy in SLOPES)
    return 4.3 - r, 6. - .1 * math.log2(T / 128) - SLOPES.get(cell.policy, 0.) * r, 200. * r

def made_up(folder, config=GRID, spread=.05, rng=None, without=(), name='made-up'):
    "A store without a model. With `rng` texts are noise around the truth, else their mean is exact."
    grid = read_sweep(config)
    who = dict(fingerprint=name, length=128, prompt=None, dtype='float32', device='cpu', batch_size=grid.batch_size)
    store = claim(folder, grid, who, place=dict(device_name='no device'))
    for cell in cells(grid):
        key, n = cell_key(cell, name, 128), cell.n
        about = describe(cell, key, store.record, 128)
        z = (rng or np.random.default_rng(int(key, 16))).standard_normal((2, n)) * spread
        if rng is None: z -= z.mean(1, keepdims=True)
        H, y, taken = coordinates(cell, about['n_steps'])
        ids = dict(sample=pa.array(range(n), pa.int32()), crc=pa.array(checksums([[0] * 128] * n)))
        columns = ids | dict(
            tokens=pa.array([[0] * 128] * n, pa.list_(pa.uint16())),
            n_forward=pa.array([128] * n, pa.int32()),
            n_remasked=pa.array([round(taken)] * n, pa.int32()),
            seconds=pa.array([0.1] * n),
        )
        if cell.trace:
            columns |= dict(
                remasked=(
                    w := by_step(
                        torch.zeros(about['n_steps'], n, 128, dtype=torch.bool).index_fill(
                            2, torch.tensor([1, 2]), True
                        )
                    )
                ),
                written=w,
            )
        write_table(store.cell(key), pa.table(columns), about)
        if 'entropy' not in without:
            write_table(
                store.metric(key, 'entropy'),
                pa.table(ids | dict(entropy=H + z[0])),
                dict(key=key, metric='entropy', reference=None),
            )
        if 'perplexity' not in without:
            nll = {
                k: v
                for r in eos_rules
                for k, v in ((f'nll_{r}', 100 * (y + z[1])), (f'weight_{r}', np.full(n, 100.0)))
            }
            write_table(
                store.metric(key, 'perplexity', 'smollm2'),
                pa.table(ids | nll),
                dict(key=key, metric='perplexity', reference='smollm2'),
            )
    return open_store(folder)

@pytest.fixture(scope='module')
def toy(tmp_path_factory): return read(made_up(tmp_path_factory.mktemp('toy') / 'store'))

# --- tables -----------------------------------------------------------------------------------------------------------

HOSTILE = [
    'a|b',
    'a & b',
    r'\input{x}',
    '50 %',
    '$x$',
    '<script>alert(1)</script>',
    '[red]a[/red]',
    '[a](http://b)',
    '*a*',
    '_a_',
    '`a`',
    'a\nb',
    '# a',
    '\x1b[31ma',
    '[2cm] a',
    'é – τ',
    '{',
    '}',
    '~',
    '^',
    '',
]

# --- stores -----------------------------------------------------------------------------------------------------------

def is_png(path):
    data = path.read_bytes()
    width, height = struct.unpack('>II', data[16:24])
    return data[:8] == b'\x89PNG\r\n\x1a\n' and data[-8:-4] == b'IEND' and min(width, height) > 300

@pytest.fixture(scope='module')
def reported(toy, tmp_path_factory):
    console = Console(width=200, record=True, file=open('/dev/null', 'w'))
    return report(toy.store, tmp_path_factory.mktemp('report') / 'out', console), console.export_text()

@pytest.fixture(scope='module')
def many(tmp_path_factory):
    "Many policies, as a store has them that was asked for all"
    others = [dict(policy='prism', eta=.08, on=.02 + .01 * i, label=f'policy {i}') for i in range(36)]
    return read(
        made_up(
            tmp_path_factory.mktemp('many') / 's',
            dict(
                GRID,
                n=8,
                batch_size=8,
                entries=[*[dict(policy=p, eta=0.08) for p in SLOPES if p != 'backbone'], *others],
            ),
        )
    )
