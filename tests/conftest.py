"""Before anything is imported: no network, no window, and the same Hypothesis cases on every
machine."""
import json, os, shutil, signal
from pathlib import Path

os.environ |= dict(HF_HUB_OFFLINE='1', TRANSFORMERS_OFFLINE='1', HF_DATASETS_OFFLINE='1')
os.environ |= dict(MPLBACKEND='Agg', TOKENIZERS_PARALLELISM='false')

# Tests beside each other share the cores; so do processes that they start.
if 'PYTEST_XDIST_WORKER' in os.environ: os.environ.setdefault('OMP_NUM_THREADS', '1')

# Started with `&`, Ctrl-C is tested all the same, here and in processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN: signal.signal(signal.SIGINT,
                                                                    signal.default_int_handler)

import pytest
import torch
from hypothesis import HealthCheck, settings
from safetensors.torch import load_file, save_file
import kernels

kernels.install()

# Two shared cores: a deadline would only measure the neighbours.
slow_is_fine = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile('navira', derandomize=True, max_examples=50, **slow_is_fine)
settings.register_profile('more', parent=settings.get_profile('navira'), derandomize=False,
                          max_examples=1000)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'navira'))

@pytest.fixture(scope='session')
def root():
    "The repository"
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope='session')
def golden(root):
    "Folders in the layouts of published models, with what their own code computes"
    return root / 'tests' / 'golden'


@pytest.fixture
def copied(golden, tmp_path):
    """A folder of `golden` without some files, given as patterns, with other tensors, given as a
    dictionary, and other fields in its config.json; None is no such tensor, 'absent' no field."""
    def make(name='a2d-llama', *changes, **fields):
        folder = shutil.copytree(golden / name, tmp_path / name, dirs_exist_ok=True)
        config = json.loads((golden / name / 'config.json').read_text()) | fields
        config = {k: v for k, v in config.items() if v != 'absent'}
        (folder / 'config.json').write_text(json.dumps(config))
        for change in changes:
            if isinstance(change, str):
                for file in folder.glob(change): file.unlink()
                continue
            weights = load_file(golden / name / 'model.safetensors') | change
            weights = {k: w for k, w in weights.items() if w is not None}
            save_file(weights, folder / 'model.safetensors', metadata=dict(format='pt'))
        return folder
    return make


@pytest.fixture(scope='session')
def embedded():
    "The model that the package brings"
    import navira
    return navira.load()


@pytest.fixture(autouse=True)
def the_same_noise():
    "A test's result does not depend on those before it"
    kernels.where.seed(0)


@pytest.fixture
def one_thread():
    "For tests that count passes: with several threads a batch is shared out among them"
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)


@pytest.fixture
def two_threads():
    "For tests of batches side by side, also where the machine has one core"
    n = torch.get_num_threads(); torch.set_num_threads(2); yield; torch.set_num_threads(n)


CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))),
                None)
FLAGS = ['--no-sandbox', '--no-first-run', *(f'--disable-{k}' for k in
         ('gpu', 'quic', 'background-networking', 'component-update', 'sync'))]

@pytest.fixture(scope='session')
def browser():
    "The distribution's Chromium; without it, or without Playwright, its tests are skipped"
    # .ci/run installs it
    if not CHROMIUM and os.environ.get('CI') != 'true': pytest.skip('no Chromium here')
    if os.environ.get('CI') == 'true': import playwright.sync_api as api
    else: api = pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
    with api.sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield b
        b.close()
