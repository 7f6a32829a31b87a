"""Training: corpora, packing, settings, kill and resume, the PRISM objective, several processes."""
import contextlib, dataclasses, json, math, os, random, re, shutil, signal, subprocess, sys, time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from navira import training
from navira.denoiser import Config, MaskedLM, load, with_head
from navira.training import (EOS, MASK, CriticConfig, Ema, Epochs, FinetuneConfig, Log, Mdlm, Prism, TrainConfig, auroc, auroc_interval, bounded, cosine, encode, encode_corpus, evaluate_nelbo, export,
                             finetune, keyed, packed, precision, processes, random_fill, read_checkpoint, read_config, read_corpus, read_log, reliability, save_checkpoint,
                             take_average, tokens_of, train, train_tokenizer)

ROOT = Path(__file__).resolve().parents[1]
LINES = [f'the {a} {v} the {b}, and then the {c} sleeps.' for a in ('dog', 'cat', 'owl') for v in ('sees', 'hears') for b in ('man', 'child', 'bird') for c in ('cow', 'horse')]
SMALL = dict(batch_size=8, length=16, dim=16, blocks=1, heads=2, cond_dim=8, vocab_size=300, warmup=5, lr=1e-2, log_every=1, precision='fp32', eval_sequences=16)


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


def small(home, out, steps=30, **kw): return TrainConfig(data=str(home), out=str(out), tokens=steps * 8 * 16, **(SMALL | dict(eval_every=10, checkpoint_every=4) | kw))


def losses(run): return {r['step']: (r['loss'], r['grad_norm']) for r in read_log(Path(run) / 'log.jsonl') if 'loss' in r}


@pytest.fixture(scope='module')
def trained(home, tmp_path_factory):
    "An undisturbed run: the folder of the run."
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp('runs') / 'whole'
    assert train(small(home, out), progress=False) == out / 'model'
    return out


# tokens

@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_tokenizer_round_trip(text):
    text = text.encode('utf-8', 'ignore').decode()
    ids = encode(TOK, text + MASK)
    assert TOK.decode(ids.tolist(), skip_special_tokens=False) == text + MASK
    assert not set(ids.tolist()) & {TOK.token_to_id(EOS), TOK.token_to_id(MASK)}

TOK = train_tokenizer(LINES, 300)


def test_tokenizer_ids():
    assert TOK.token_to_id(EOS) == 0 and TOK.token_to_id(MASK) == TOK.get_vocab_size() - 1
    with pytest.raises(ValueError, match='vocab_size=100'): train_tokenizer(LINES, 100)


def test_encoding_is_cached_and_atomic(tmp_path):
    def broken():
        yield LINES[0]
        raise OSError('disk')
    with pytest.raises(OSError): encode_corpus(TOK, broken(), tmp_path / 'a.npy')
    assert not (tmp_path / 'a.npy').exists()
    ids = encode_corpus(TOK, LINES, tmp_path / 'a.npy')
    assert (ids == 0).sum() == len(LINES) and ids[-1] == 0
    (tmp_path / 'a.npy').write_bytes((tmp_path / 'a.npy').read_bytes()[:-7])
    with pytest.raises(ValueError, match='a.npy: damaged'): encode_corpus(TOK, LINES, tmp_path / 'a.npy')


# corpora

def table(path, texts, column='text'): pq.write_table(pa.table({'title': [str(i) for i in range(len(texts))], column: pa.array(texts, pa.large_string())}), path)


def test_parquet_splits_and_columns(tmp_path):
    table(tmp_path / 'train-00000.parquet', LINES[:5]); table(tmp_path / 'train-00001.parquet', LINES[5:7] + [None]); table(tmp_path / 'validation.parquet', LINES[7:9])
    assert list(read_corpus(tmp_path)) == LINES[:7] + ['']
    assert list(read_corpus(tmp_path, split='validation')) == LINES[7:9]
    assert list(read_corpus(tmp_path / 'validation.parquet')) == LINES[7:9]
    with pytest.raises(KeyError, match="did you mean 'text'"): read_corpus(tmp_path, text_column='txt')


def test_text_patterns(tmp_path, monkeypatch):
    for n in 'ab': (tmp_path / f'{n}.txt').write_text(n)
    monkeypatch.chdir(tmp_path)
    assert list(read_corpus('*.txt')) == ['a', 'b'] == list(read_corpus(tmp_path))


def test_corpus_errors(tmp_path):
    (tmp_path / 'books.txt').write_text('a')
    with pytest.raises(FileNotFoundError, match="did you mean .*books.txt'"): read_corpus(tmp_path / 'book.txt')
    with pytest.raises(FileNotFoundError, match='no such entry'): read_corpus(tmp_path / 'zzz' / 'qqq')
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match='corpus is empty'): read_corpus(tmp_path / 'empty')
    table(tmp_path / 'empty' / 'train.parquet', ['', ' \n'])
    with pytest.raises(ValueError, match='corpus is empty'): read_corpus(tmp_path / 'empty')
    (tmp_path / 'bad.txt').write_bytes(b'good \xff bad')
    with pytest.raises(ValueError, match=r'bad.txt: not UTF-8 at byte 5 \(0xff\)'): read_corpus(tmp_path / 'bad.txt')
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.array([0, 3], pa.int32()).buffers()[1], pa.py_buffer(b'ok\xff')])
    pq.write_table(pa.table({'text': bad}), tmp_path / 'bad.parquet')
    with pytest.raises(ValueError, match='bad.parquet: row 0, column .text.: not UTF-8 at byte 2'): read_corpus(tmp_path / 'bad.parquet')
    (tmp_path / 'cut.parquet').write_bytes(b'PAR1 and no more')
    with pytest.raises(ValueError, match='cut.parquet: not a readable Parquet file'): read_corpus(tmp_path / 'cut.parquet')


def test_datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip('datasets')
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    rows = datasets.Dataset.from_dict({'text': LINES[:6]})
    rows.save_to_disk(str(tmp_path / 'saved'))
    assert list(read_corpus(tmp_path / 'saved')) == LINES[:6]
    folder = tmp_path / 'openwebtext'                          # the Hub's data set: one `train` split of Parquet files with a column `text`
    folder.mkdir(); table(folder / 'train-00000-of-00001.parquet', LINES[:4])
    assert list(read_corpus(f'datasets:{folder}')) == LINES[:4]
    there = datasets.load_dataset
    monkeypatch.setattr(datasets, 'load_dataset', lambda name, **kw: there(str(folder), **kw) if name == 'Skylion007/openwebtext' else (_ for _ in ()).throw(FileNotFoundError(name)))
    monkeypatch.chdir(tmp_path)
    assert list(read_corpus('Skylion007/openwebtext')) == LINES[:4]
    with pytest.raises(KeyError, match="did you mean 'text'"): read_corpus('Skylion007/openwebtext', text_column='texts')
    with pytest.raises(FileNotFoundError, match='as a data set'): read_corpus('Skylion007/openwebtex')


# packing and order

@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.integers(1, 20), st.integers(0, 19))
def test_packed(n, length, offset):
    if offset >= n: return
    seqs = packed(np.arange(n), length, offset)
    assert seqs.shape == ((n - offset) // length, length)
    assert seqs.ravel().tolist() == list(range(offset, offset + seqs.size))


@settings(max_examples=30, deadline=None)
@given(st.integers(40, 300), st.integers(2, 9), st.integers(1, 4), st.integers(0, 5))
def test_epochs_cover_each_sequence_at_most_once(n, length, batch, seed):
    data = Epochs(np.arange(n), length, batch, seed)
    for epoch in range(3):
        x = torch.cat([data.batch(epoch * data.per_epoch + i) for i in range(data.per_epoch)])
        offset = epoch * 37 % length
        assert x.shape == (data.per_epoch * batch, length) and (x.diff(dim=1) == 1).all()
        assert ((x[:, 0] - offset) % length == 0).all() and len(x[:, 0].unique()) == len(x)
        assert (n - offset) // length - len(x) <= batch                 # less than two batches are left out
    assert torch.equal(Epochs(np.arange(n), length, batch, seed).batch(5), data.batch(5))


# settings

@pytest.mark.parametrize('text, error, match', [
    ('{"data": "d", "out": "o", "lrr": 1}', KeyError, "setting 'lrr': did you mean 'lr'"), ('{"data": "d"}', ValueError, 'out: not given'),
    ('{"data": "d", "out": "o", "lr": "fast"}', ValueError, "lr='fast': expected float"), ('{"data": "d", "out": "o", "betas": [0.9]}', ValueError, 'betas'),
    ('{"data": "d", "out": "o", "precision": "bf6"}', KeyError, "did you mean 'bf16'"), ('{"data":', ValueError, 'c.json'), ('{"data": "d", "out": "o", "ema": 1.5}', ValueError, 'ema=1.5: expected 0 to 1'),
    ('{"data": "d", "out": "o", "batch_size": 2.5}', ValueError, 'batch_size=2.5: expected int'), ('{"data": "d", "out": "o", "tokens": true}', ValueError, 'tokens=True'),
    ('{"data": "d", "out": "o", "clip": 0}', ValueError, r'clip=0\.0: expected more than 0$'), ('{"data": "d", "out": "o", "betas": [true, 0.9]}', ValueError, r'betas=\[True, 0\.9\]: expected two numbers'),
    ('{"data": "d", "out": "o", "betas": [0, 1]}', ValueError, r'betas=\[0, 1\]: expected two numbers in \[0, 1\)')])
def test_bad_settings(tmp_path, text, error, match):
    (tmp_path / 'c.json').write_text(text)
    with pytest.raises(error, match=match): read_config(TrainConfig, tmp_path / 'c.json')


def test_settings_file(tmp_path):
    (tmp_path / 'run.toml').write_text('data = "d"\nout = "o"\nfill = 4')
    assert read_config(FinetuneConfig, tmp_path / 'run.toml', drafts=3, fill=None) == FinetuneConfig(data='d', out='o', fill=4, drafts=3)
    with pytest.raises(FileNotFoundError, match='did you mean .*run.toml'): read_config(TrainConfig, tmp_path / 'runs.toml')


def test_whole_numbers_do_for_betas():
    betas = TrainConfig(data='d', out='o', betas=[0, .9]).betas
    assert betas == (0., .9) and all(type(b) is float for b in betas)


def test_run_refusals(home, tmp_path, trained):
    with pytest.raises(ValueError, match='lr: 0.01 there, 0.5 now'): train(small(home, trained, lr=.5), progress=False)
    with pytest.raises(ValueError, match='cannot be used as a run folder'): train(small(home, home / 'train.txt' / 'run'), progress=False)
    with pytest.raises(ValueError, match='less than one step'): train(small(home, tmp_path / 'r', steps=0.5), progress=False)
    with pytest.raises(ValueError, match='hidden_dim=15'): train(small(home, tmp_path / 'r', dim=15), progress=False)
    with pytest.raises(FileNotFoundError, match='tokenizer='): train(small(home, tmp_path / 'r', tokenizer=str(tmp_path / 'tok.json')), progress=False)
    with pytest.raises(FileNotFoundError, match='did you mean'): train(small(str(home) + 'x', tmp_path / 'r'), progress=False)
    assert not (tmp_path / 'r').exists()                       # nothing was begun
    with pytest.raises(ValueError, match='batch_size=5000'): train(small(home, tmp_path / 'r', steps=1000, batch_size=5000), progress=False)


# checkpoints, kill and resume

def test_damaged_checkpoint(tmp_path):
    for i in range(2): save_checkpoint(tmp_path, dict(step=i, w=torch.full((500,), float(i))))
    whole = (tmp_path / 'last.pt').read_bytes()
    for bad in (b'', whole[:10], whole[:len(whole) // 2], b'\0' * 100 + whole[100:], b'hello'):
        (tmp_path / 'last.pt').write_bytes(bad)
        with pytest.raises(ValueError, match='last.pt: damaged checkpoint .* previous.pt'): read_checkpoint(tmp_path)
    (tmp_path / 'last.pt').unlink()                            # also what a kill between the two moves leaves
    assert read_checkpoint(tmp_path)['step'] == 0
    assert read_checkpoint(tmp_path / 'none') is None


def test_the_average_is_taken_whole(tmp_path):
    model = tiny_model()
    average, buffers = {n: torch.full_like(p, .5) for n, p in model.named_parameters()}, {n: b.clone() for n, b in model.named_buffers()}
    assert buffers                                             # not averaged: only these may be missing
    save_checkpoint(tmp_path, dict(ema=average))
    take_average(model, tmp_path)
    assert all((p == .5).all() for p in model.parameters()) and all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())
    save_checkpoint(tmp_path, dict(ema={n: a for n, a in average.items() if n != 'quality.output_layer.linear.weight'}))
    with pytest.raises(RuntimeError, match='Missing key.*quality.output_layer.linear.weight'): take_average(model, tmp_path)
    save_checkpoint(tmp_path, dict(ema=average | {'quality.extra': torch.ones(1)}))
    with pytest.raises(RuntimeError, match='Unexpected key.*quality.extra'): take_average(model, tmp_path)


SCRIPT = '''
import os, sys, torch
from accelerate import PartialState
torch.set_num_threads(1)
from navira.training import *
folder = train(read_config(TrainConfig, sys.argv[1]), progress=False)
if len(sys.argv) > 2: finetune(read_config(FinetuneConfig, sys.argv[2], model=str(folder)), progress=False)
os.write(1, f'process {PartialState().process_index} of {PartialState().num_processes}\\n'.encode())
'''

def launch(*cfgs, tmp_path, prefix=(sys.executable,)):
    (tmp_path / 'run.py').write_text(SCRIPT)
    for i, c in enumerate(cfgs): (tmp_path / f'{i}.json').write_text(json.dumps(dataclasses.asdict(c)))
    env = os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')
    return subprocess.Popen([*prefix, str(tmp_path / 'run.py'), *(str(tmp_path / f'{i}.json') for i in range(len(cfgs)))], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def test_kill_9_and_resume(home, tmp_path, trained):
    "Killed wherever it happens to be, the run ends with the losses, and the model, of the one that was never disturbed."
    cfg, rng, log = small(home, tmp_path / 'run'), random.Random(time.time_ns()), tmp_path / 'run' / 'log.jsonl'
    reached = 0
    for kill_at in sorted(rng.sample(range(2, 29), 2)):
        p = launch(cfg, tmp_path=tmp_path)
        while p.poll() is None and not (log.exists() and max([r['step'] for r in read_log(log)], default=0) >= kill_at): time.sleep(.005)
        time.sleep(rng.random() * .05)
        os.kill(p.pid, signal.SIGKILL); p.communicate()
        reached = max(reached, max(r['step'] for r in read_log(log)))
    train(cfg, progress=False)
    assert reached >= 2 and losses(tmp_path / 'run') == losses(trained) and len(losses(trained)) == 30
    a, b = load(tmp_path / 'run' / 'model').state_dict(), load(trained / 'model').state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_resume_with_dropout_and_after_a_lost_last(home, tmp_path):
    whole, parts = (small(home, tmp_path / n, steps=12, dropout=.2) for n in ('whole', 'parts'))
    train(whole, progress=False)
    assert train(parts, progress=False, stop=10) == tmp_path / 'parts'
    (tmp_path / 'parts' / 'last.pt').unlink()                  # back to previous.pt, step 8
    torch.rand(7)                                              # the global generator must not matter
    train(parts, progress=False)
    assert losses(tmp_path / 'parts') == losses(tmp_path / 'whole')


def test_finetune_resumes_and_reports(home, tmp_path, trained):
    cfg = lambda out: FinetuneConfig(data=str(home), out=str(tmp_path / out), model=str(trained / 'model'), head_steps=6, joint_steps=6, batch_size=8, log_every=1, checkpoint_every=2, eval_every=6,
                                     eval_sequences=16, fill=3, precision='fp32')
    finetune(cfg('whole'), progress=False)
    for stop in (3, 5): assert finetune(cfg('parts'), progress=False, stop=stop) == tmp_path / 'parts'
    finetune(cfg('parts'), progress=False)
    for stage in ('head', 'joint'): assert losses(tmp_path / 'parts' / stage) == losses(tmp_path / 'whole' / stage) and len(losses(tmp_path / 'whole' / stage)) == 6
    model = load(tmp_path / 'whole' / 'model')
    assert model.quality is not None
    head = read_checkpoint(tmp_path / 'whole' / 'head')
    for k, v in load(trained / 'model').backbone.state_dict().items(): assert torch.equal(head['model'][f'backbone.{k}'], v)          # stage 1 leaves the backbone alone
    assert any(not torch.equal(v, head['model'][f'backbone.{k}']) for k, v in model.backbone.state_dict().items())                     # stage 2 does not
    record = json.loads((tmp_path / 'whole' / 'model' / 'training.json').read_text())
    assert [s['name'] for s in record['stages']] == ['pretrain', 'head', 'joint'] and record['quality']['low'] <= record['quality']['auroc'] <= record['quality']['high']
    card = (tmp_path / 'whole' / 'model' / 'README.md').read_text()
    assert f"{record['quality']['auroc']:.3f}" in card and str(home) not in card and str(home) not in json.dumps(record)
    assert record['before']['n'] == record['nelbo']['n']


def test_pretraining_learns_and_exports(trained):
    record = json.loads((trained / 'model' / 'training.json').read_text())
    evals = [e['nelbo'] for e in record['stages'][0]['evals']]
    assert evals[-1] < evals[0] < math.log(299) + .5
    again = export(trained, trained / 'half', dtype=torch.bfloat16)
    assert load(trained / 'half').backbone.vocab_embed.embedding.dtype == torch.float32
    assert abs(again['nelbo']['value'] - record['nelbo']['value']) < .05


def test_checkpoint_has_one_group_in_parameter_order(trained):
    state = read_checkpoint(trained)
    model = load(trained / 'model')
    params = state['optimizer']['param_groups']
    assert len(params) == 1 and len(params[0]['params']) == len(list(model.backbone.parameters()))
    for i, p in enumerate(model.backbone.parameters()): assert state['optimizer']['state'][i]['exp_avg'].shape == p.shape


def test_two_processes(home, tmp_path, trained):
    "Two processes on halves of each batch follow the run of one process; both stages of fine-tuning run too."
    cfg = small(home, tmp_path / 'two', steps=30)
    tune = FinetuneConfig(data=str(home), out=str(tmp_path / 'tuned'), head_steps=3, joint_steps=3, batch_size=8, log_every=1, eval_sequences=16, precision='fp32')
    p = launch(cfg, tune, tmp_path=tmp_path, prefix=(sys.executable, '-m', 'accelerate.commands.launch', '--multi_gpu', '--num_processes', '2', '--num_machines', '1', '--mixed_precision', 'no', '--dynamo_backend', 'no',
                                      '--main_process_port', str(random.randint(20000, 60000))))
    out, _ = p.communicate(timeout=240)
    assert p.returncode == 0, out.decode()[-3000:]
    assert sorted(re.findall(r'process (\d) of (\d)', out.decode())) == [('0', '2'), ('1', '2')]     # `--cpu` would start one, and say nothing
    a, b = losses(tmp_path / 'two'), losses(trained)
    assert len(a) == 30 and all(abs(a[s][0] - b[s][0]) < 1e-3 * b[s][0] for s in range(1, 31)), [(a[s], b[s]) for s in a]
    assert len(losses(tmp_path / 'tuned' / 'head')) == len(losses(tmp_path / 'tuned' / 'joint')) == 3 and load(tmp_path / 'tuned' / 'model').quality is not None


# pieces

def test_cosine():
    assert cosine(0, 100, 10, .1) == pytest.approx(.1) and cosine(100, 100, 10, .1) == pytest.approx(.1)
    assert cosine(0, 10, 0, 1.) == 1. == cosine(9, 10, 0, 1.)
    rates = [cosine(s, 100, 10, .1) for s in range(101)]
    assert all(a >= b for a, b in zip(rates[10:], rates[11:]))


def test_ema():
    w = nn.Linear(3, 2)
    ema, expect = Ema(w, .5), {n: p.detach().clone() for n, p in w.named_parameters()}
    for s in range(1, 6):
        with torch.no_grad():
            for p in w.parameters(): p.add_(torch.randn_like(p))
        ema.update(s)
        d = min(.5, (1 + s) / (10 + s))
        expect = {n: d * expect[n] + (1 - d) * p.detach() for n, p in w.named_parameters()}
    for n in expect: torch.testing.assert_close(ema.average[n], expect[n])
    raw = w.weight.detach().clone()
    with ema.applied() as m:
        assert not m.training and torch.equal(w.weight, ema.module.weight) and torch.allclose(w.weight, expect['weight'])
    assert torch.equal(w.weight, raw) and w.training


def test_precision_is_explicit_or_detected():
    assert precision('no') == 'fp32' == precision('fp32') and precision('bf16') == 'bf16' and precision('auto') in ('fp32', 'bf16')


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**31), st.floats(0, 1))
def test_random_fill(k, seed, share):
    g = torch.Generator().manual_seed(seed)
    masked, keys = torch.rand(3, 1, 10, generator=g) < share, torch.rand(3, 2, 10, generator=g)
    new = random_fill(keys, masked, k)
    assert new.shape == (3, 2, 10) and not (new & ~masked).any()
    assert torch.equal(new.sum(-1), masked.sum(-1).clamp(max=k).expand(3, 2))


def test_random_fill_is_uniform():
    masked = torch.tensor([True, False, True, True, True])
    n = random_fill(torch.rand(20_000, 5, generator=torch.Generator().manual_seed(0)), masked, 2).double().mean(0)
    assert torch.allclose(n, .5 * masked.double(), atol=.02)


def tiny_model(**kw):
    torch.manual_seed(0)
    return with_head(MaskedLM(Config(vocab_size=12, model_length=10, hidden_dim=16, cond_dim=8, n_blocks=1, n_heads=2, **({'dropout': 0.} | kw))))


@pytest.mark.parametrize('joint', [False, True])
def test_prism_trains_what_it_should(joint):
    model = tiny_model()
    with torch.no_grad():
        for p in model.parameters(): p.add_(.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    model.backbone.requires_grad_(joint)
    objective, x = Prism(model, fill=3, drafts=2, joint=joint), torch.randint(0, 11, (6, 10), generator=torch.Generator().manual_seed(2))
    noise = objective.noise(x, keyed(0, 0, 1))
    assert [tuple(a.shape) for a in noise] == [(6, 10), (6,), (6, 2, 10), (6, 10)]
    out = objective(x, *noise)
    assert set(out) == ({'loss', 'bce', 'nelbo'} if joint else {'loss', 'bce'}) and all(v.dim() == 0 and v.isfinite() for v in out.values())
    out['loss'].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.quality.parameters())
    assert all((p.grad is not None) == joint for p in model.backbone.parameters())


class Told(nn.Module):
    "Says what it is told; remembers what it was asked."
    mask_id = 11
    def __init__(self): super().__init__(); self.asked, self.graded = [], []
    def forward(self, y):
        self.asked.append(y); self.graded.append(torch.zeros(y.shape, requires_grad=True)); self.g = self.graded[-1]
        return self
    def logits(self, where): return torch.zeros(int(where.sum()), 12).index_fill(1, torch.tensor(11), -torch.inf)
    def quality(self): return self.g


def test_prism_judges_only_what_it_filled():
    told, x = Told(), torch.randint(0, 11, (8, 10), generator=torch.Generator().manual_seed(2))
    objective = Prism(told, fill=3, drafts=2, p=1., joint=False)
    z, t, keys, u = objective.noise(x, keyed(0, 0, 1))
    objective(x, z, t, keys, u)['loss'].backward()
    z2, y = told.asked
    z3 = z.repeat_interleave(2, 0)
    assert torch.equal(z2, z) and y.shape == (16, 10)
    assert torch.equal(told.g.grad != 0, y != z3)                                       # judged = newly filled
    assert torch.equal((y != z3).sum(1), (z3 == 11).sum(1).clamp(max=3))                # k, or all there are
    assert torch.equal(y[z3 != 11], z3[z3 != 11])                                       # what was visible stays
    both = (y[0::2] != 11) & (y[1::2] != 11)
    assert torch.equal(y[0::2][both], y[1::2][both])                                    # one draw for all drafts
    n = (y != z3).sum()                                                                 # plain mean: sigmoid(0) - right, over n
    torch.testing.assert_close(told.g.grad[y != z3], (.5 - (y == x.repeat_interleave(2, 0))[y != z3].float()) / n)


def test_prism_survives_a_batch_without_masks():
    objective, x = Prism(tiny_model(), fill=3, drafts=1), torch.zeros(2, 10, dtype=torch.long)
    out = objective(x, x, torch.full((2,), .5), torch.rand(2, 1, 10), torch.rand(2, 10, dtype=torch.float64))
    assert out['loss'].item() == 0


def test_mdlm_weighs_by_1_over_t():
    model, x = MaskedLM(Config(vocab_size=12, model_length=10, hidden_dim=16, cond_dim=8, n_blocks=1, n_heads=2, dropout=0.)), torch.zeros(2, 10, dtype=torch.long)
    z = x.clone(); z[0, :3] = 11; z[1, 4] = 11
    loss = Mdlm(model)(x, z, torch.tensor([.5, .1]))['loss']
    torch.testing.assert_close(loss, torch.tensor((3 / .5 + 1 / .1) * math.log(11) / 20))


def test_nelbo_of_a_uniform_model():
    model = tiny_model().eval()
    e = evaluate_nelbo(model, np.random.default_rng(0).integers(0, 11, (500, 10)))
    assert abs(e.value - math.log(11)) < 3 * e.se and e.n == 500


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs(pairs):
    s, r = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])
    if r.all() or not r.any(): assert math.isnan(auroc(s, r)); return
    expect = np.mean([(a > b) + .5 * (a == b) for a in s[r] for b in s[~r]])
    assert auroc(s, r) == pytest.approx(expect)


def test_auroc_interval_is_wider_for_clustered_tokens():
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(200), 8)
    right = np.repeat(rng.random(200) < .5, 8); score = right + np.repeat(rng.normal(size=200), 8)       # eight copies of each token
    wide, narrow = (np.diff(auroc_interval(score, right, r, n=300))[0] for r in (rows, np.arange(1600)))
    assert wide > 2 * narrow


def test_reliability_counts_everything():
    p, r = np.array([0., .05, .5, .95, 1.]), np.array([False, False, True, True, True])
    table = reliability(p, r)
    assert sum(b['n'] for b in table) == 5 and [b['n'] for b in table] == [2, 1, 2] and all(b['low'] <= b['right'] <= b['high'] for b in table)


def test_held_out_text_is_not_trained_on(tmp_path):
    (tmp_path / 'b.txt').write_text('\n'.join(LINES * 8))
    train(small(tmp_path / 'b.txt', tmp_path / 'run', steps=4), progress=False)
    ids, held = tokens_of(tmp_path / 'run', 16)
    whole = np.load(tmp_path / 'run' / 'train.npy')
    assert len(ids) + held.size <= len(whole) and len(held) >= 2 and not (tmp_path / 'run' / 'validation.npy').exists()
    assert (whole[len(ids):len(ids) + held.size] == held.ravel()).all()


# what others leave, and what goes wrong

def nano(home, out, steps=2, **kw): return small(home, out, steps, **(dict(batch_size=8, dim=8, cond_dim=4, checkpoint_every=1, eval_every=100, eval_sequences=2) | kw))


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


def test_every_precision_after_every_other(lines, tmp_path):
    "Accelerate keeps the first one of a process, and so did we; a sweep before (PartialState) makes no difference."
    from accelerate import PartialState
    PartialState()
    for p in ('fp32', 'bf16', 'fp32'): assert processes(p).mixed_precision == dict(fp32='no', bf16='bf16')[p]
    for p in ('bf16', 'fp32', 'bf16'): train(nano(lines, tmp_path / p, dim=16, precision=p), progress=False)
    assert losses(tmp_path / 'bf16') != losses(tmp_path / 'fp32')
    assert json.loads((tmp_path / 'fp32' / 'run.json').read_text())['precision'] == 'fp32'


def test_corpus_errors_come_before_the_accelerator(tmp_path, monkeypatch):
    monkeypatch.setattr(training, 'processes', lambda *a, **k: pytest.fail('an accelerator was touched'))
    (tmp_path / 'empty.txt').write_text(''); (tmp_path / 'latin.txt').write_bytes(b'caf\xe9 ' * 50)
    for name, error in dict(none=FileNotFoundError, empty=ValueError, latin=ValueError).items():
        for run in (lambda d: train(nano(d, tmp_path / 'run'), progress=False), lambda d: finetune(FinetuneConfig(data=str(d), out=str(tmp_path / 'run')), progress=False)):
            with pytest.raises(error, match=f'{name}.txt'): run(tmp_path / f'{name}.txt')
    assert not (tmp_path / 'run').exists()


@given(st.floats(1e-12, 1e12).flatmap(lambda x: st.sampled_from([repr(x), f'{x:e}', f'{x:+.3f}', f' {x} ', repr(x).removeprefix('0')])))
def test_a_number_is_what_float_reads(text):
    if float(text) >= 0: assert TrainConfig(data='d', out='o', lr=text).lr == float(text)


def test_numbers_as_text_are_checked_too():
    c = TrainConfig(data='d', out='o', lr='.001', tokens='76_000_000', batch_size='1e2', betas=['.9', '.95'])
    assert (c.lr, c.tokens, c.batch_size, c.betas) == (.001, 76_000_000, 100, (.9, .95)) and type(c.batch_size) is int
    for bad in (dict(lr='inf'), dict(lr='nan'), dict(tokens='1.5'), dict(batch_size='-3'), dict(lr='1e-3x'), dict(tokens=10**400)):
        with pytest.raises(ValueError, match=f'^{next(iter(bad))}='): TrainConfig(data='d', out='o', **bad)


def test_fp32_is_called_so():
    assert TrainConfig(data='d', out='o', precision='no') == TrainConfig(data='d', out='o', precision='fp32')     # the old word, in files of old runs
    with pytest.raises(KeyError, match="did you mean 'fp32'"): TrainConfig(data='d', out='o', precision='fp23')


@pytest.mark.parametrize('text', ['[1, 2]', '5', '"lr"', 'null'])
def test_a_settings_file_is_a_table(tmp_path, text):
    (tmp_path / 'c.json').write_text(text)
    with pytest.raises(ValueError, match=r'c\.json: holds .*expected settings by name'): read_config(TrainConfig, tmp_path / 'c.json')


@pytest.mark.parametrize('kw', [dict(dim=1e12), dict(blocks=1e12), dict(heads=1e12), dict(cond_dim=1e18), dict(length=1e12), dict(batch_size=1e12), dict(dim=2**16, blocks=64, heads=64)], ids=str)
def test_sizes_that_no_machine_has(lines, tmp_path, kw):
    name = next(iter(kw))
    with pytest.raises(ValueError, match=f'{name}={int(kw[name])}.*expected'): train(small(lines, tmp_path / 'r', **kw), progress=False)
    assert not (tmp_path / 'r').exists()


def test_nothing_to_train():
    with pytest.raises(ValueError, match='head_steps=0 and joint_steps=0'): FinetuneConfig(data='d', out='o', head_steps=0, joint_steps=0)


@pytest.mark.parametrize('name', ['tokenizer.json', 'train.npy', 'last.pt', 'model'])
def test_files_of_others_are_neither_used_nor_replaced(lines, tmp_path, name):
    (tmp_path / name).write_text('mine')
    with pytest.raises(ValueError, match=f'no run.json.*{re.escape(name)}'): train(nano(lines, tmp_path), progress=False)
    assert [p.name for p in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == 'mine'


def test_a_folder_with_other_things_in_it_keeps_them(lines, tmp_path):
    names = ('writable', 'new.pt', '.mine.tmp', '.notes.tmp', 'notes.txt', '.navira-notes.tmp', f'.navira-{os.getppid()}-0123456789abcdef.tmp')   # the last is being written
    for n in names: (tmp_path / n).write_text('mine')
    (tmp_path / f'.navira-{2**30}-0123456789abcdef.tmp').write_text('half a checkpoint of ours')
    train(nano(lines, tmp_path, 4), progress=False, stop=1)
    assert not (tmp_path / f'.navira-{2**30}-0123456789abcdef.tmp').exists()
    assert all((tmp_path / n).read_text() == 'mine' for n in names)


def test_a_damaged_line_of_the_log(copied):
    "The log is a record: what is damaged in it is left out and said, and the run goes on and ends."
    out, cfg = copied
    log = out / 'log.jsonl'
    whole = read_log(log)
    for bad in (b'{}', b'5', b'{"step": "x"}', b'\xff\xfe', b'[' * 100_000, b'{"step": 1, "loss": [1]}'):
        log.write_bytes(bad + b'\n' + b''.join(json.dumps(r).encode() + b'\n' for r in whole) + b'{"step": 3')
        with pytest.warns(UserWarning, match=r'log\.jsonl, line 1: damaged, left out') as said: assert read_log(log) == whole
        assert len(said) == 1                                  # none for the unfinished last line
    with pytest.warns(UserWarning, match='line 1: damaged'): assert train(cfg, progress=False) == out / 'model'
    assert [r['step'] for r in read_log(log) if 'loss' in r] == [1, 2, 3, 4]
    log.write_text('')
    with pytest.raises(ValueError, match=r'log\.jsonl: holds no record of a step'): export(out, out / 'again')


@pytest.mark.parametrize('text', ['', '{', '[]', '{"value": "x", "se": 1}'])
def test_a_damaged_before(tmp_path, text):
    (tmp_path / 'before.json').write_text(text)
    with pytest.raises(ValueError, match=r'before\.json: damaged .*delete it'): training.before(tiny_model(), np.zeros((2, 16), np.int64), tmp_path)


@pytest.mark.parametrize('inside', ['', 'model'])
def test_finetuning_keeps_the_record_of_its_model(monkeypatch, tmp_path, inside):
    "Of the embedded model by name or none, of a folder, and of a run's folder."
    folder = tmp_path / 'source' / inside
    folder.mkdir(parents=True)
    for name in ('config.json', 'training.json'): (folder / name).write_text('{"stages": [1]}')
    monkeypatch.setattr(training, 'load', lambda model: tiny_model()); monkeypatch.setattr(training, 'with_head', lambda model: model)
    monkeypatch.setattr(training, 'WEIGHTS', tmp_path / 'source')
    monkeypatch.setattr(training, 'stages', lambda cfg: [('head', 1, cfg)]); monkeypatch.setattr(training, 'read_checkpoint', lambda f: {})
    monkeypatch.setattr(training, 'take_average', lambda model, f: model); monkeypatch.setattr(training, 'stage_record', lambda *a: {})
    for model in (None, 'embedded', str(tmp_path / 'source')):
        assert training.finetuned(tmp_path, dict(data='d', out='o', model=model))[1] == dict(stages=[1])
    (folder / 'training.json').write_text('{')
    with pytest.raises(ValueError, match=r'training\.json: damaged'): training.finetuned(tmp_path, dict(data='d', out='o', model=None))


@pytest.mark.parametrize('name', ['tokenizer.json', 'train.npy'])
def test_foreign_tokens_in_a_run(copied, name):
    out, cfg = copied
    whole = (out / name).read_bytes()
    for bad in (b'', whole[:-1] + bytes([whole[-1] ^ 1]), whole + b'0'):
        (out / name).write_bytes(bad)
        with pytest.raises(ValueError, match=f'{re.escape(name)}: not the file that this run made'): train(cfg, progress=False)
    (out / name).write_bytes(whole)                            # another time, equal content
    assert train(cfg, progress=False, stop=3) == out
    (out / 'validation.npy').write_bytes((out / 'train.npy').read_bytes())
    with pytest.raises(ValueError, match='validation.npy: not the file'): train(cfg, progress=False)


def test_damaged_tokens_are_said_to_be(tmp_path):
    for raw in (b'', b'no array'):
        (tmp_path / 'train.npy').write_bytes(raw)
        with pytest.raises(ValueError, match='train.npy: damaged'): tokens_of(tmp_path, 16)
    np.save(tmp_path / 'train.npy', np.zeros((3, 4)))
    with pytest.raises(ValueError, match='train.npy: damaged'): tokens_of(tmp_path, 16)


def test_a_corpus_that_changed(tmp_path):
    home = tmp_path / 'texts'; home.mkdir()
    text = '\n'.join(LINES * 4)
    (home / 'a.txt').write_text(text)
    cfg = nano(home, tmp_path / 'run', 4)
    train(cfg, progress=False, stop=1)
    (home / 'a.txt').write_text(text.replace('dog', 'god', 1))                      # equal size
    with pytest.raises(ValueError, match='a.txt has another content'): train(cfg, progress=False)
    (home / 'a.txt').write_text(text); (home / 'b.txt').write_text('more')
    with pytest.raises(ValueError, match='b.txt is new'): train(cfg, progress=False)
    (home / 'b.txt').unlink()
    assert train(cfg, progress=False, stop=2) == tmp_path / 'run'
    shutil.rmtree(home)                                                             # gone is not changed: the tokens are there
    assert train(cfg, progress=False, stop=3) == tmp_path / 'run'


def test_a_validation_tail_without_text(tmp_path):
    table(tmp_path / 'a.parquet', LINES * 4 + [''] * 200)
    with pytest.raises(ValueError, match='validation text: .* only ends of documents'): train(nano(tmp_path / 'a.parquet', tmp_path / 'run'), progress=False)


def test_a_single_flipped_bit(copied):
    out, cfg = copied
    whole, rng = (out / 'last.pt').read_bytes(), random.Random(0)
    state, refused = read_checkpoint(out), 0
    for _ in range(60):
        i = rng.randrange(len(whole))
        (out / 'last.pt').write_bytes(whole[:i] + bytes([whole[i] ^ 1 << rng.randrange(8)]) + whole[i + 1:])
        try: got = read_checkpoint(out)
        except ValueError as e: refused += 1; assert 'last.pt: damaged checkpoint' in str(e); continue
        assert str(got) == str(state)                          # in the padding: nothing is lost
    assert refused >= 15, refused


@pytest.mark.parametrize('spoil, match', [
    (lambda s: s | dict(step=10**9), 'step=1000000000: expected at most 4'), (lambda s: s | dict(step=-5), 'step=-5'), (lambda s: s | dict(step=1.5), 'step=1.5'), (lambda s: s | dict(seconds='long'), 'seconds='),
    (lambda s: {k: v for k, v in s.items() if k != 'ema'}, 'no ema'), (lambda s: s | dict(ema={k: v[..., :1] for k, v in s['ema'].items()}), r'ema: .* expected \['), (lambda s: s | dict(model=[1]), 'model: expected the'),
    (lambda s: s | dict(model={k: v * math.nan for k, v in s['model'].items()}), 'model: .* holds NaN'), (lambda s: s | dict(optimizer={}), 'optimizer: expected'),
    (lambda s: s | dict(optimizer=s['optimizer'] | dict(state={0: dict(step=torch.tensor(1.), exp_avg=torch.ones(1), exp_avg_sq=torch.ones(1))})), 'optimizer 0: exp_avg is'),
    (lambda s: [1, 2], 'holds list, no state'), (lambda s: 'text', 'holds str, no state')])
def test_a_checkpoint_that_is_none(copied, spoil, match):
    out, cfg = copied
    torch.save(spoil(read_checkpoint(out)), out / 'last.pt')
    with pytest.raises(ValueError, match=f'last.pt: .*{match}.*delete it, and the run goes on from previous.pt'): train(cfg, progress=False)


def test_the_average_of_nothing(tmp_path):
    with pytest.raises(ValueError, match='holds no checkpoint'): take_average(tiny_model(), tmp_path)
    save_checkpoint(tmp_path, dict(step=1))
    with pytest.raises(ValueError, match='no averaged weights'): take_average(tiny_model(), tmp_path)


@pytest.mark.parametrize('text', ['', '[]', '{"lr": 1}', '{'])
def test_a_damaged_run_file(copied, text):
    out, cfg = copied
    (out / 'run.json').write_text(text)
    with pytest.raises(ValueError, match='cannot be used as a run folder: run.json'): train(cfg, progress=False)


def test_a_rate_that_ruins_the_weights(lines, tmp_path, trained):
    "Nothing that is not finite is saved or exported."
    with pytest.raises(FloatingPointError, match=r'step 1: NaN or infinity in the weights .*no checkpoint was written.*lr=1e\+300'): train(nano(lines, tmp_path / 'a', 1, lr=1e300, warmup=0), progress=False)
    cfg = FinetuneConfig(data=str(lines), out=str(tmp_path / 'b'), model=str(trained / 'model'), head_steps=2, joint_steps=0, head_lr=1e300, warmup=0, batch_size=4, eval_sequences=2, precision='fp32')
    with pytest.raises(FloatingPointError, match='step 2: .*; no checkpoint was written'): finetune(cfg, progress=False)
    assert not list(tmp_path.glob('*/**/last.pt')) and not list(tmp_path.glob('*/model'))


def test_the_last_good_checkpoint_stays(copied, monkeypatch):
    out, cfg = copied
    real = training.train_step
    def spoilt(tr, *a):
        found = real(tr, *a)
        if tr.step == 4:
            with torch.no_grad(): next(tr.objective.model.parameters()).view(-1)[0] = math.nan
        return found
    monkeypatch.setattr(training, 'train_step', spoilt)
    with pytest.raises(FloatingPointError, match=f'step 4: NaN or infinity in the weights .*the checkpoint of step 3 stays in {out}'): train(cfg, progress=False)
    monkeypatch.setattr(training, 'train_step', real)
    assert read_checkpoint(out)['step'] == 3 and not (out / 'model').exists()
    assert train(cfg, progress=False) == out / 'model'


@contextlib.contextmanager
def full_disk(size=20_000):
    "No file may grow beyond `size` bytes: for whoever writes, that is a full disk."
    resource = pytest.importorskip('resource')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_last_checkpoint(copied):
    out, cfg = copied
    whole = (out / 'last.pt').read_bytes()
    state = read_checkpoint(out)
    for more in (1, 1000, 50_000):                                                  # noticed at the end, in between, at once
        with full_disk(20_000 if more > 1000 else 2000), pytest.raises(OSError, match='last.pt: no space left.*what was there before still is'):
            save_checkpoint(out, state | dict(more=torch.zeros(more)))
    with pytest.MonkeyPatch.context() as m, pytest.raises(OSError, match='the last good checkpoint stays .*unexpected pos.*last.pt'):
        def hidden(*a): raise RuntimeError('unexpected pos 64 vs 0')                # torch without the reason
        m.setattr(torch, 'save', hidden); save_checkpoint(out, state)
    assert (out / 'last.pt').read_bytes() == whole and sorted(p.name for p in out.glob('*.pt')) == ['last.pt', 'previous.pt'] and not list(out.glob('.*.tmp'))
    log = Log(out / 'log.jsonl', 2)
    with full_disk(10), pytest.raises(OSError, match='log.jsonl'): log(step=3, loss=1.)
    log.file.close()
    assert train(cfg, progress=False) == out / 'model'


def test_two_at_once(copied):
    "Refused while another process trains there; a kill gives the folder back."
    out, cfg = copied
    code = f"import time, filelock\nwith filelock.FileLock({str(out / 'run.lock')!r}): print('held', flush=True); time.sleep(600)"
    p = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)
    try:
        assert p.stdout.readline() == b'held\n'
        with pytest.raises(ValueError, match='another training is writing to this folder'): train(cfg, progress=False)
    finally: p.kill(); p.communicate()
    assert train(cfg, progress=False, stop=3) == out


# how long

def test_a_small_text_is_not_trained_on_for_a_day(lines, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(training, 'step_seconds', lambda *a: .5)
    cfg = dataclasses.replace(nano(lines, tmp_path / 'run', epochs=2, minutes=10, checkpoint_every=100), tokens=None)
    assert TrainConfig(data='d', out='o').tokens is None
    assert train(cfg, progress=False, tell=said.append, stop=2) == tmp_path / 'run'
    run = json.loads((tmp_path / 'run' / 'run.json').read_text())
    per_epoch = Epochs(tokens_of(tmp_path / 'run', 16)[0], 16, 8).per_epoch
    assert run['tokens'] == 2 * per_epoch * 8 * 16 and said[0].startswith('timing a few steps') and f'{2 * per_epoch} steps, 2 times the text, in about' in said[1]
    monkeypatch.setattr(training, 'step_seconds', lambda *a: pytest.fail('a run keeps its steps'))
    again = read_config(TrainConfig, out=tmp_path / 'run')     # all that need be said
    assert (again.data, again.tokens, again.dim) == (str(lines), run['tokens'], 8)
    for c in (cfg, again): assert train(c, progress=False, stop=3) == tmp_path / 'run'
    for given, match in ((dict(epochs=50), 'epochs: 2 there, 50 now'), (dict(minutes=1), 'minutes: 10.0 there, 1.0 now')):
        with pytest.raises(ValueError, match=match): train(read_config(TrainConfig, out=tmp_path / 'run', **given), progress=False)
    same = read_config(TrainConfig, out=tmp_path / 'run', epochs=2)                 # and with the tokens there is nothing to say
    for c in (same, read_config(TrainConfig, out=tmp_path / 'run', epochs=50, tokens=run['tokens'])): assert train(c, progress=False, stop=3) == tmp_path / 'run'
    with pytest.raises(ValueError, match='epochs: 2 there, 3 now'): train(dataclasses.replace(cfg, epochs=3), progress=False)
    with pytest.raises(ValueError, match='tokens: .* there, 512 now'): train(dataclasses.replace(cfg, tokens=512), progress=False)


@given(st.integers(1, 50), st.floats(.01, 1e4), st.integers(1, 10**6), st.floats(1e-4, 1e4))
def test_bounded_by_epochs_and_by_time(epochs, minutes, per_epoch, seconds):
    cfg, text = bounded(TrainConfig(data='d', out='o', epochs=epochs, minutes=minutes), per_epoch, seconds)
    assert 1 <= cfg.steps <= epochs * per_epoch and (cfg.steps == 1 or cfg.steps * seconds <= 60 * minutes * (1 + 1e-9))
    assert cfg.steps == epochs * per_epoch or (cfg.steps + 1) * seconds > 60 * minutes * (1 - 1e-9)
    assert ('more than minutes=' in text) == (cfg.steps < epochs * per_epoch)


def test_steps_are_measured_on_a_copy(lines, tmp_path):
    train(nano(lines, tmp_path / 'run', 4), progress=False, stop=1)
    model = MaskedLM(Config(vocab_size=300, model_length=16, hidden_dim=8, cond_dim=4, n_blocks=1, n_heads=2, dropout=0.))
    was = {k: v.clone() for k, v in model.state_dict().items()}
    cfg = nano(lines, tmp_path / 'run')
    assert training.step_seconds(Mdlm(model), Epochs(tokens_of(tmp_path / 'run', 16)[0] % 299, 16, 8), cfg, processes('fp32'), 2) > 0
    assert all(torch.equal(v, was[k]) for k, v in model.state_dict().items())


def test_checkpoints_by_time(lines, tmp_path):
    cfg = nano(lines, tmp_path / 'run', 4, checkpoint_every=1000, checkpoint_minutes=1e-9)
    steps, real = [], training.save_checkpoint
    with pytest.MonkeyPatch.context() as m:
        m.setattr(training, 'save_checkpoint', lambda folder, state: (steps.append(state['step']), real(folder, state)))
        train(cfg, progress=False, stop=3)
        train(dataclasses.replace(cfg, checkpoint_minutes=60), progress=False)
    assert steps == [1, 2, 3, 4]


def test_ctrl_c_saves_and_says_how_to_go_on(lines, tmp_path, monkeypatch):
    whole, cfg = (nano(lines, tmp_path / n, 6, checkpoint_every=1000) for n in ('whole', 'my run'))
    train(whole, progress=False)
    real = training.train_step
    def pressed(tr, *a):
        if tr.step == 2: signal.raise_signal(signal.SIGINT)                         # in the middle of a step
        return real(tr, *a)
    monkeypatch.setattr(training, 'train_step', pressed)
    with pytest.raises(KeyboardInterrupt, match='step 3 of 6 is saved. To go on: navira train --out .*my run'): train(cfg, progress=False)
    monkeypatch.setattr(training, 'train_step', real)
    assert read_checkpoint(tmp_path / 'my run')['step'] == 3 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert train(read_config(TrainConfig, out=cfg.out), progress=False) == tmp_path / 'my run' / 'model'
    assert losses(cfg.out) == losses(whole.out)


# the embedded model

def test_the_recipe_of_the_embedded_model_can_be_given():
    "What its records say, as settings, and as the commands in notebook 10 give them."
    stages = [s for name in ('training', 'critic-training') for s in json.loads((ROOT / 'navira' / 'weights' / f'{name}.json').read_text())['stages']]
    base = dict(data='classics', out='run', precision='fp32')
    said = dict(pretrain=TrainConfig(tokens=76_000_000, **base), head=FinetuneConfig(head_steps=480, joint_steps=320, warmup=50, ema=.99, **base), critic=CriticConfig(batch_size=32, **base))
    for s in stages:
        kind = dict(pretrain=TrainConfig, critic=CriticConfig).get(s['name'], FinetuneConfig)
        cfg = kind(**s['recipe'] | dict(data='classics', out='run'))
        if s['name'] in said:
            differ = {f.name for f in dataclasses.fields(cfg) if getattr(cfg, f.name) != getattr(said[s['name']], f.name)}
            assert differ <= {'checkpoint_every', 'eval_every', 'lr'}, differ       # lr: the record's is the stage's, which is `head_lr`
    assert said['pretrain'].steps == 9277 and [cosine(i, 9277, 300, .05) for i in (0, 299)] == pytest.approx([1 / 300, 1.], abs=.01)
