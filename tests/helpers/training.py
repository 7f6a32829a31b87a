"""What the tests of training share."""
import multiprocessing
import os
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from accelerate import PartialState

from navira.models.layers import Config
from navira.models.dit import MaskedLM, with_head
from navira.training.loop import read_log
from navira.training.train import train
from navira.training.settings import TrainConfig

LINES = [
    f'the {a} {v} the {b}, and then the {c} sleeps.' for a in ('dog', 'cat', 'owl')
    for v in ('sees', 'hears') for b in ('man', 'child', 'bird') for c in ('cow', 'horse')]

SMALL = dict(
    batch_size=8, length=16, dim=16, blocks=1, heads=2, cond_dim=8, vocab_size=300, warmup=5,
    lr=1e-2, log_every=1, precision='fp32', eval_every=10, checkpoint_every=4, eval_sequences=16,
    final_sequences=16)

@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A corpus with held-out text."
    folder, rng = tmp_path_factory.mktemp('corpus'), random.Random(0)
    for name, n in (('train', 800), ('validation', 100)):
        (folder / f'{name}.txt').write_text('\n'.join(rng.choice(LINES) for _ in range(n)))
    return folder

@pytest.fixture(scope='module')
def lines(tmp_path_factory):
    "A corpus of a few lines, without held-out text."
    folder = tmp_path_factory.mktemp('lines')
    (folder / 'a.txt').write_text('\n'.join(LINES * 4))
    return folder

STEPS = 30

def small(home, out, steps=STEPS, **kw):
    given = dict(data=str(home), out=str(out), tokens=int(steps * 8 * 16))
    return TrainConfig(**given | SMALL | kw)

def nano(home, out, steps=2, **kw):
    few = dict(dim=8, cond_dim=4, checkpoint_every=1, eval_every=100, eval_sequences=2)
    return small(home, out, steps, **few | kw)

@pytest.fixture(scope='module')
def trained(home, tmp_path_factory):
    "An undisturbed run: the folder of the run."
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp('runs') / 'whole'
    assert train(small(home, out), progress=False) == out / 'model'
    return out

def losses(run):
    records = read_log(Path(run) / 'log.jsonl')
    return {r['step']: (r['loss'], r['grad_norm']) for r in records if 'loss' in r}

def assert_same(a, b):
    "Losses of two runs with the same batches: what rounding comes to in a few steps"
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)

def assert_same_weights(a, b):
    "Adam's first steps are as long for a gradient that is rounding alone; such weights are few"
    assert a and a.keys() == b.keys()
    far = torch.cat([(a[k] - b[k]).abs().flatten() for k in a])
    assert far.mean() < 3e-4

def table(path, texts, column='text'):
    pq.write_table(pa.table({'title': [*map(str, range(len(texts)))], column: texts}), path)

@pytest.fixture(scope='module')
def server():
    "Starts processes that have the library imported."
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['navira.training.train'])
    return context

def train_there(env, cfg, tune=None):
    "In a process of its own, or in one of several: pretrains, and perhaps fine-tunes."
    os.environ |= env | dict(CUDA_VISIBLE_DEVICES='')
    torch.set_num_threads(1)
    folder = train(cfg, progress=False)
    assert PartialState().num_processes == int(env.get('WORLD_SIZE', 1))
    if tune: train(replace(tune, model=str(folder)), progress=False)

def tiny_model(**kw):
    torch.manual_seed(0)
    sizes = dict(vocab_size=12, model_length=10, hidden_dim=16, cond_dim=8, n_blocks=1, n_heads=2)
    return with_head(MaskedLM(Config(**sizes | dict(dropout=0.) | kw)))

def moved(model, scale=.3):
    "The same with every parameter random: a fresh output layer is zero and passes no gradient."
    with torch.no_grad():
        g = torch.Generator().manual_seed(1)
        for p in model.parameters(): p.add_(scale * torch.randn(p.shape, generator=g))
    return model
