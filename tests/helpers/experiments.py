"What the tests of experiments share."
from types import SimpleNamespace

import pytest
import torch

from navira.evaluation.references import Reference
from navira.experiments.run import run
from navira.experiments.sweep import read_sweep
from navira.models.load import load as load_model, save
from helpers.checkpoints import words
from helpers.metrics import llama
from toys import small_lm

GRID = '''
n = 10
batch_size = 4
budgets = [4, 8]
metrics = ["entropy"]
[[entries]]
policy = "prism"
trace = true
eta = 0.2
[[entries]]
policy = "navira"
tau = 0.2
vary.eta = [0.1, 0.3]
[[entries]]
policy = "backbone"
'''
WORDS = '. we saw a red fox and it ran away'.split()

@pytest.fixture(scope='module', autouse=True)
def one_thread_each():
    "As in the processes that are started here: the shape of a batch decides the last bit of a sum"
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A model on disk, a configuration that names it, and the store of an undisturbed sweep."
    home = tmp_path_factory.mktemp('grid')
    model = small_lm(seed=3)
    model.tokenizer = words(*WORDS)
    save(model, home/'model')
    (home/'grid.toml').write_text(f'model = "{home}/model"' + GRID)
    sweep = read_sweep(home/'grid.toml')
    net = load_model(home/'model')
    return SimpleNamespace(config=home/'grid.toml', sweep=sweep, model=net,
                           store=run(sweep, home/'whole'))

def same(a, b):
    "Do two stores hold the same, times of the clock aside, and nothing half-done?"
    left = [*a.folder.rglob('parts/*/*'), *a.folder.rglob('*.tmp')]
    ours, theirs = (s.read('samples').drop_columns(['seconds']) for s in (a, b))
    return not left and ours.equals(theirs) and a.cells == b.cells

@pytest.fixture(scope='module')
def judge():
    "A causal model of random numbers that knows the words and a separator"
    from transformers import PreTrainedTokenizerFast
    tok = PreTrainedTokenizerFast(tokenizer_object=words(*WORDS), eos_token='<|endoftext|>')
    return Reference(llama(16), tok, '<|endoftext|>', 'random')
