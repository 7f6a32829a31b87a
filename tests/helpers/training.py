"""What the tests of training share."""
import dataclasses, json, os, random, shutil, subprocess, sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from navira.models.layers import Config
from navira.models.dit import MaskedLM, with_head
from navira.training.settings import TrainConfig
from navira.training.runs import read_log
from navira.training.pretraining import train

ROOT = Path(__file__).resolve().parents[2]

LINES = [
    f'the {a} {v} the {b}, and then the {c} sleeps.' for a in ('dog', 'cat', 'owl') for v in ('sees', 'hears')
    for b in ('man', 'child', 'bird') for c in ('cow', 'horse')]

SMALL = dict(
    batch_size=8, length=16, dim=16, blocks=1, heads=2, cond_dim=8, vocab_size=300, warmup=5, lr=1e-2, log_every=1,
    precision='fp32', eval_sequences=16)

@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp('corpus'), random.Random(0)
    (folder / 'train.txt').write_text('\n'.join(rng.choice(LINES) for _ in range(800)))
    (folder / 'validation.txt').write_text('\n'.join(rng.choice(LINES) for _ in range(100)))
    return folder

def small(home, out, steps=30, **kw):
    return TrainConfig(
        data=str(home), out=str(out), tokens=steps * 8 * 16, **(SMALL | dict(eval_every=10, checkpoint_every=4) | kw))

def losses(run):
    return {r['step']: (r['loss'], r['grad_norm']) for r in read_log(Path(run) / 'log.jsonl') if 'loss' in r}

@pytest.fixture(scope='module')
def trained(home, tmp_path_factory):
    "An undisturbed run: the folder of the run."
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp('runs') / 'whole'
    assert train(small(home, out), progress=False) == out / 'model'
    return out

# corpora

def table(path, texts, column='text'):
    pq.write_table(
        pa.table({'title': [str(i) for i in range(len(texts))], column: pa.array(texts, pa.large_string())}), path)

SCRIPT = '''
import os, sys, torch
from accelerate import PartialState
torch.set_num_threads(1)
from navira.training.settings import FinetuneConfig, TrainConfig, read_config
from navira.training.pretraining import train
from navira.training.finetuning import finetune
from navira.training.critic import CriticConfig, train_critic
folder = train(read_config(TrainConfig, sys.argv[1]), progress=False)
if len(sys.argv) > 2: finetune(read_config(FinetuneConfig, sys.argv[2], model=str(folder)), progress=False)
os.write(1, f'process {PartialState().process_index} of {PartialState().num_processes}\\n'.encode())
'''

def launch(*cfgs, tmp_path, prefix=(sys.executable,)):
    (tmp_path / 'run.py').write_text(SCRIPT)
    for i, c in enumerate(cfgs): (tmp_path / f'{i}.json').write_text(json.dumps(dataclasses.asdict(c)))
    env = os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')
    return subprocess.Popen(
        [*prefix, str(tmp_path / 'run.py'), *(str(tmp_path / f'{i}.json') for i in range(len(cfgs)))], env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

def tiny_model(**kw):
    torch.manual_seed(0)
    return with_head(
        MaskedLM(
            Config(
                vocab_size=12, model_length=10, hidden_dim=16, cond_dim=8, n_blocks=1, n_heads=2,
                **({'dropout': 0.0} | kw))
        ))

# what others leave, and what goes wrong

def nano(home, out, steps=2, **kw):
    return small(
        home, out, steps,
        **(dict(batch_size=8, dim=8, cond_dim=4, checkpoint_every=1, eval_every=100, eval_sequences=2) | kw))

@pytest.fixture(scope='module')
def lines(tmp_path_factory):
    "A corpus of a few lines, held-out text in it."
    folder = tmp_path_factory.mktemp('lines')
    (folder / 'a.txt').write_text('\n'.join(LINES * 4))
    return folder

@pytest.fixture(scope='module')
def begun(lines, tmp_path_factory):
    "A run of two steps out of four."
    out = tmp_path_factory.mktemp('runs') / 'begun'
    assert train(nano(lines, out, 4), progress=False, stop=2) == out
    return out

@pytest.fixture
def copied(begun, lines, tmp_path):
    "The same in a folder that a test may spoil, and its settings."
    shutil.copytree(begun, tmp_path / 'run')
    return tmp_path / 'run', nano(lines, tmp_path / 'run', 4)
