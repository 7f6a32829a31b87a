"""A masked diffusion model from a text file, from the first token to a folder that loads."""
import contextlib, dataclasses, json, math, os, random, re, shutil, signal, subprocess, sys, time

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

import navira.training.loop as training_loop
import navira.training.pretraining as training_pretraining
import navira.training.runs as training_runs
from navira.models.layers import Config
from navira.models.dit import MaskedLM
from navira.models.load import load
from navira.training.data import Epochs
from navira.training.settings import TrainConfig, processes, read_config
from navira.training.runs import Log, read_checkpoint, read_log, save_checkpoint
from navira.training.objectives import Mdlm
from navira.training.pretraining import bounded, tokens_of, train
from helpers.training import (  # noqa: F401
    begun,     LINES, copied, home, launch, lines, losses, nano, one_thread, small, table, trained)

@contextlib.contextmanager
def full_disk(size=20_000):
    "No file may grow beyond `size` bytes: for whoever writes, that is a full disk."
    resource = pytest.importorskip('resource')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

def test_run_refusals(home, tmp_path, trained):
    with pytest.raises(ValueError, match='lr: 0.01 there, 0.5 now'): train(small(home, trained, lr=.5), progress=False)
    with pytest.raises(ValueError, match='cannot be used as a run folder'):
        train(small(home, home / 'train.txt' / 'run'), progress=False)
    with pytest.raises(ValueError, match='less than one step'):
        train(small(home, tmp_path / 'r', steps=0.5), progress=False)
    with pytest.raises(ValueError, match='hidden_dim=15'): train(small(home, tmp_path / 'r', dim=15), progress=False)
    with pytest.raises(FileNotFoundError, match='tokenizer='):
        train(small(home, tmp_path / 'r', tokenizer=str(tmp_path / 'tok.json')), progress=False)
    with pytest.raises(FileNotFoundError, match='did you mean'):
        train(small(str(home) + 'x', tmp_path / 'r'), progress=False)
    assert not (tmp_path / 'r').exists()  # nothing was begun
    with pytest.raises(ValueError, match='batch_size=5000'):
        train(small(home, tmp_path / 'r', steps=1000, batch_size=5000), progress=False)

def test_a_tokenizer_that_cuts_texts_is_told_not_to(home, tmp_path, trained):
    "As every tokenizer of a sentence encoder says in its file."
    tok = Tokenizer.from_file(str(trained / 'tokenizer.json'))
    tok.enable_truncation(6)
    tok.save(str(tmp_path / 'tokenizer.json'))
    train(small(home, tmp_path / 'r', tokenizer=str(tmp_path / 'tokenizer.json')), progress=False, stop=1)
    whole, here = (np.load(run / 'train.npy') for run in (trained, tmp_path / 'r'))
    assert np.array_equal(whole, here)

def test_kill_9_and_resume(home, tmp_path, trained):
    "Killed wherever it happens to be, the run ends with the losses, and the model, of one never disturbed."
    cfg, rng, log = small(home, tmp_path / 'run'), random.Random(time.time_ns()), tmp_path / 'run' / 'log.jsonl'
    reached = 0
    for kill_at in sorted(rng.sample(range(2, 29), 2)):
        p = launch(cfg, tmp_path=tmp_path)
        while p.poll() is None and not (log.exists() and max([r['step'] for r in read_log(log)], default=0) >= kill_at):
            time.sleep(0.005)
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

def test_held_out_text_is_not_trained_on(tmp_path):
    (tmp_path / 'b.txt').write_text('\n'.join(LINES * 8))
    train(small(tmp_path / 'b.txt', tmp_path / 'run', steps=4), progress=False)
    ids, held = tokens_of(tmp_path / 'run', 16)
    whole = np.load(tmp_path / 'run' / 'train.npy')
    assert len(ids) + held.size <= len(whole) and len(held) >= 2 and not (tmp_path / 'run' / 'validation.npy').exists()
    assert (whole[len(ids):len(ids) + held.size] == held.ravel()).all()

def test_every_precision_after_every_other(lines, tmp_path):
    "Accelerate keeps the first one of a process, and so did we; a sweep before (PartialState) makes no difference."
    from accelerate import PartialState
    PartialState()
    for p in ('fp32', 'bf16', 'fp32'): assert processes(p).mixed_precision == dict(fp32='no', bf16='bf16')[p]
    for p in ('bf16', 'fp32', 'bf16'): train(nano(lines, tmp_path / p, dim=16, precision=p), progress=False)
    assert losses(tmp_path / 'bf16') != losses(tmp_path / 'fp32')
    assert json.loads((tmp_path / 'fp32' / 'run.json').read_text())['precision'] == 'fp32'

@pytest.mark.parametrize(
    'kw', [
        dict(dim=1e12), dict(blocks=1e12), dict(heads=1e12), dict(cond_dim=1e18), dict(length=1e12),
        dict(batch_size=1e12), dict(dim=2**16, blocks=64, heads=64)],
    ids=str)
def test_sizes_that_no_machine_has(lines, tmp_path, kw):
    name = next(iter(kw))
    with pytest.raises(ValueError, match=f'{name}={int(kw[name])}.*expected'):
        train(small(lines, tmp_path / 'r', **kw), progress=False)
    assert not (tmp_path / 'r').exists()

@pytest.mark.parametrize('name', ['tokenizer.json', 'train.npy', 'last.pt', 'model'])
def test_files_of_others_are_neither_used_nor_replaced(lines, tmp_path, name):
    (tmp_path / name).write_text('mine')
    with pytest.raises(ValueError, match=f'no run.json.*{re.escape(name)}'):
        train(nano(lines, tmp_path), progress=False)
    assert [p.name for p in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == 'mine'

def test_a_folder_with_other_things_in_it_keeps_them(lines, tmp_path):
    # the last is being written
    names = (
        'writable', 'new.pt', '.mine.tmp', '.notes.tmp', 'notes.txt', '.navira-notes.tmp',
        f'.navira-{os.getppid()}-0123456789abcdef.tmp')
    for n in names: (tmp_path / n).write_text('mine')
    (tmp_path / f'.navira-{2**30}-0123456789abcdef.tmp').write_text('half a checkpoint of ours')
    train(nano(lines, tmp_path, 4), progress=False, stop=1)
    assert not (tmp_path / f'.navira-{2**30}-0123456789abcdef.tmp').exists()
    assert all((tmp_path / n).read_text() == 'mine' for n in names)

@pytest.mark.parametrize('name', ['tokenizer.json', 'train.npy'])
def test_foreign_tokens_in_a_run(copied, name):
    out, cfg = copied
    whole = (out / name).read_bytes()
    for bad in (b'', whole[:-1] + bytes([whole[-1] ^ 1]), whole + b'0'):
        (out / name).write_bytes(bad)
        with pytest.raises(ValueError, match=f'{re.escape(name)}: not the file that this run made'):
            train(cfg, progress=False)
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
    # gone is not changed: the tokens are there
    shutil.rmtree(home)
    assert train(cfg, progress=False, stop=3) == tmp_path / 'run'

def test_a_validation_tail_without_text(tmp_path):
    table(tmp_path / 'a.parquet', LINES * 4 + [''] * 200)
    with pytest.raises(ValueError, match='validation text: .* only ends of documents'):
        train(nano(tmp_path / 'a.parquet', tmp_path / 'run'), progress=False)

@pytest.mark.parametrize(
    'spoil, match',
    [
        (lambda s: s | dict(step=10**9), 'step=1000000000: expected at most 4'),
        (lambda s: s | dict(step=-5), 'step=-5'), (lambda s: s | dict(step=1.5), 'step=1.5'),
        (lambda s: s | dict(seconds='long'), 'seconds='),
        (lambda s: {k: v for k, v in s.items() if k != 'ema'}, 'no ema'),
        (lambda s: s | dict(ema={k: v[..., :1] for k, v in s['ema'].items()}), r'ema: .* expected \['),
        (lambda s: s | dict(model=[1]), 'model: expected the'),
        (lambda s: s | dict(model={k: v * math.nan for k, v in s['model'].items()}), 'model: .* holds NaN'),
        (lambda s: s['optimizer']['param_groups'][0].update(amsgrad=True) or s, 'amsgrad=True, expected False'),
        (lambda s: s | dict(optimizer={}), 'optimizer: expected'), (
            lambda s: (
                s
                | dict(
                    optimizer=s['optimizer']
                    | dict(state={0: dict(step=torch.tensor(1.0), exp_avg=torch.ones(1), exp_avg_sq=torch.ones(1))}))
            ), 'optimizer 0: exp_avg is'),
        (lambda s: [1, 2], 'holds list, no state'), (lambda s: 'text', 'holds str, no state')],
)
def test_a_checkpoint_that_is_none(copied, spoil, match):
    out, cfg = copied
    torch.save(spoil(read_checkpoint(out)), out / 'last.pt')
    with pytest.raises(ValueError, match=f'last.pt: .*{match}.*delete it, and the run goes on from previous.pt'):
        train(cfg, progress=False)

@pytest.mark.parametrize('text', ['', '[]', '{"lr": 1}', '{'])
def test_a_damaged_run_file(copied, text):
    out, cfg = copied
    (out / 'run.json').write_text(text)
    with pytest.raises(ValueError, match='cannot be used as a run folder: run.json'): train(cfg, progress=False)

def test_the_last_good_checkpoint_stays(copied, monkeypatch):
    out, cfg = copied
    real = training_loop.train_step
    def spoilt(tr, *a):
        found = real(tr, *a)
        if tr.step == 4:
            with torch.no_grad(): next(tr.objective.model.parameters()).view(-1)[0] = math.nan
        return found
    for room in ('navira.training.loop', 'navira.training.pretraining'):
        monkeypatch.setattr(f'{room}.train_step', spoilt)
    with pytest.raises(
        FloatingPointError, match=f'step 4: NaN or infinity in the weights .*the checkpoint of step 3 stays in {out}'):
        train(cfg, progress=False)
    for room in ('navira.training.loop', 'navira.training.pretraining'):
        monkeypatch.setattr(f'{room}.train_step', real)
    assert read_checkpoint(out)['step'] == 3 and not (out / 'model').exists()
    assert train(cfg, progress=False) == out / 'model'

def test_a_full_disk_keeps_the_last_checkpoint(copied):
    out, cfg = copied
    whole = (out / 'last.pt').read_bytes()
    state = read_checkpoint(out)
    # noticed at the end, in between, at once
    for more in (1, 1000, 50_000):
        with (
            full_disk(20_000 if more > 1000 else 2000),
            pytest.raises(OSError, match='last.pt: no space left.*what was there before still is')):
            save_checkpoint(out, state | dict(more=torch.zeros(more)))
    with (
        pytest.MonkeyPatch.context() as m,
        pytest.raises(OSError, match='the last good checkpoint stays .*unexpected pos.*last.pt')):
        def hidden(*a): raise RuntimeError('unexpected pos 64 vs 0')                # torch without the reason
        m.setattr(torch, 'save', hidden); save_checkpoint(out, state)
    assert (
        (out / 'last.pt').read_bytes() == whole
        and sorted(p.name for p in out.glob('*.pt')) == ['last.pt', 'previous.pt'] and not list(out.glob('.*.tmp')))
    log = Log(out / 'log.jsonl', 2)
    with full_disk(10), pytest.raises(OSError, match='log.jsonl'): log(step=3, loss=1.)
    log.file.close()
    assert train(cfg, progress=False) == out / 'model'

def test_two_at_once(copied):
    "Refused while another process trains there; a kill gives the folder back."
    out, cfg = copied
    held = f"with filelock.FileLock({str(out / '.navira.lock')!r}): print('held', flush=True); time.sleep(600)"
    code = f'import time, filelock\n{held}'
    p = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)
    try:
        assert p.stdout.readline() == b'held\n'
        with pytest.raises(ValueError, match='another training is writing to this folder'): train(cfg, progress=False)
    finally: p.kill(); p.communicate()
    assert train(cfg, progress=False, stop=3) == out

# how long

def test_a_small_text_is_not_trained_on_for_a_day(lines, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr('navira.training.pretraining.step_seconds', lambda *a: .5)
    cfg = dataclasses.replace(nano(lines, tmp_path / 'run', epochs=2, minutes=10, checkpoint_every=100), tokens=None)
    assert TrainConfig(data='d', out='o').tokens is None
    assert train(cfg, progress=False, tell=said.append, stop=2) == tmp_path / 'run'
    run = json.loads((tmp_path / 'run' / 'run.json').read_text())
    per_epoch = Epochs(tokens_of(tmp_path / 'run', 16)[0], 16, 8).per_epoch
    assert (
        run['tokens'] == 2 * per_epoch * 8 * 16 and said[0].startswith('timing a few steps')
        and f'{2 * per_epoch} steps, 2 times the text, in about' in said[1])
    monkeypatch.setattr('navira.training.pretraining.step_seconds', lambda *a: pytest.fail('a run keeps its steps'))
    again = read_config(TrainConfig, out=tmp_path / 'run')     # all that need be said
    assert (again.data, again.tokens, again.dim) == (str(lines), run['tokens'], 8)
    for c in (cfg, again): assert train(c, progress=False, stop=3) == tmp_path / 'run'
    others = (dict(epochs=50), 'epochs: 2 there, 50 now'), (dict(minutes=1), 'minutes: 10.0 there, 1.0 now')
    for other, match in others:
        with pytest.raises(ValueError, match=match):
            train(read_config(TrainConfig, out=tmp_path / 'run', **other), progress=False)
    # and with the tokens there is nothing to say
    same = read_config(TrainConfig, out=tmp_path / 'run', epochs=2)
    for c in (same, read_config(TrainConfig, out=tmp_path / 'run', epochs=50, tokens=run['tokens'])):
        assert train(c, progress=False, stop=3) == tmp_path / 'run'
    with pytest.raises(ValueError, match='epochs: 2 there, 3 now'):
        train(dataclasses.replace(cfg, epochs=3), progress=False)
    with pytest.raises(ValueError, match='tokens: .* there, 512 now'):
        train(dataclasses.replace(cfg, tokens=512), progress=False)

@given(st.integers(1, 50), st.floats(.01, 1e4), st.integers(1, 10**6), st.floats(1e-4, 1e4))
def test_bounded_by_epochs_and_by_time(epochs, minutes, per_epoch, seconds):
    cfg, text = bounded(TrainConfig(data='d', out='o', epochs=epochs, minutes=minutes), per_epoch, seconds)
    assert 1 <= cfg.steps <= epochs * per_epoch and (cfg.steps == 1 or cfg.steps * seconds <= 60 * minutes * (1 + 1e-9))
    assert cfg.steps == epochs * per_epoch or (cfg.steps + 1) * seconds > 60 * minutes * (1 - 1e-9)
    assert ('more than minutes=' in text) == (cfg.steps < epochs * per_epoch)

def test_steps_are_measured_on_a_copy(lines, tmp_path):
    train(nano(lines, tmp_path / 'run', 4), progress=False, stop=1)
    model = MaskedLM(
        Config(vocab_size=300, model_length=16, hidden_dim=8, cond_dim=4, n_blocks=1, n_heads=2, dropout=0.0))
    was = {k: v.clone() for k, v in model.state_dict().items()}
    cfg = nano(lines, tmp_path / 'run')
    assert (
        training_pretraining.step_seconds(
            Mdlm(model), Epochs(tokens_of(tmp_path / 'run', 16)[0] % 299, 16, 8), cfg, processes('fp32'), 2)
        > 0)
    assert all(torch.equal(v, was[k]) for k, v in model.state_dict().items())

def test_checkpoints_by_time(lines, tmp_path):
    cfg = nano(lines, tmp_path / 'run', 4, checkpoint_every=1000, checkpoint_minutes=1e-9)
    steps, real = [], training_runs.save_checkpoint
    with pytest.MonkeyPatch.context() as m:
        for room in ('navira.training.runs', 'navira.training.loop'):
            m.setattr(f'{room}.save_checkpoint', lambda folder, state: (steps.append(state['step']), real(folder, state)))  # noqa: E501
        train(cfg, progress=False, stop=3)
        train(dataclasses.replace(cfg, checkpoint_minutes=60), progress=False)
    assert steps == [1, 2, 3, 4]

def test_ctrl_c_saves_and_says_how_to_go_on(lines, tmp_path, monkeypatch):
    whole, cfg = (nano(lines, tmp_path / n, 6, checkpoint_every=1000) for n in ('whole', 'my run'))
    train(whole, progress=False)
    real = training_loop.train_step
    def pressed(tr, *a):
        if tr.step == 2: signal.raise_signal(signal.SIGINT)                         # in the middle of a step
        return real(tr, *a)
    for room in ('navira.training.loop', 'navira.training.pretraining'):
        monkeypatch.setattr(f'{room}.train_step', pressed)
    with pytest.raises(KeyboardInterrupt, match='step 3 of 6 is saved. To go on: navira train --out .*my run'):
        train(cfg, progress=False)
    for room in ('navira.training.loop', 'navira.training.pretraining'):
        monkeypatch.setattr(f'{room}.train_step', real)
    assert (
        read_checkpoint(tmp_path / 'my run')['step'] == 3
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    assert train(read_config(TrainConfig, out=cfg.out), progress=False) == tmp_path / 'my run' / 'model'
    assert losses(cfg.out) == losses(whole.out)
