"""One loop: rates, averages, checkpoints, and runs that are stopped, killed and refused."""
import math
import random
import time

import pytest
import torch

from navira.models.load import load
from navira.training.loop import accelerator, read_log, Trainer
from navira.training.objectives import mdlm_loss
from navira.training.train import train
from navira.training.settings import FinetuneConfig, read_config, TrainConfig
from helpers.training import (  # noqa: F401
    assert_same, assert_same_weights, home, lines, losses, nano, one_thread, server, small, STEPS,
    tiny_model, train_there, trained)

def test_the_average_is_exponential_and_changes_places(tmp_path):
    model = tiny_model()
    cfg = TrainConfig(data='d', out=str(tmp_path), ema=.5)
    tr = Trainer('s', mdlm_loss(model), 9, cfg, tmp_path, dict, accelerator('fp32'))
    def weights(): return torch.cat([p.detach().flatten() for p in model.parameters()])
    expect = weights()
    for s in range(1, 6):
        tr.train_step(torch.zeros(4, 10, dtype=torch.long))
        expect = expect.lerp(weights(), 1 - min(.5, (1 + s) / (10 + s)))
    raw = weights()
    for swapped in (expect, raw):
        tr.swap()
        torch.testing.assert_close(weights(), swapped)

# stopped and killed

def test_kill_9_and_resume(home, tmp_path, trained, server):
    "Killed wherever it is, a run ends with the losses and the model of one never disturbed."
    cfg, rng = small(home, tmp_path / 'run'), random.Random(time.time_ns())
    def reached(): return max([r['step'] for r in read_log(tmp_path / 'run' / 'log.jsonl')] or [0])
    p, kill_at = server.Process(target=train_there, args=({}, cfg)), rng.randrange(2, STEPS - 1)
    p.start()
    while p.is_alive() and reached() < kill_at: time.sleep(.005)
    time.sleep(rng.random() * .05)
    p.kill()
    p.join()
    assert reached() >= kill_at
    train(cfg, progress=False)
    assert len(losses(trained)) == STEPS
    assert_same(losses(tmp_path / 'run'), losses(trained))
    assert_same_weights(*(load(run / 'model').state_dict() for run in (tmp_path / 'run', trained)))
    assert not list((tmp_path / 'run').rglob('.navira-*.tmp'))

def test_dropout_is_the_same_after_a_stop(home, tmp_path):
    whole, parts = (nano(home, tmp_path / n, steps=4, dropout=.2) for n in ('whole', 'parts'))
    train(whole, progress=False)
    train(parts, progress=False, stop=3)
    torch.rand(7)     # the global generator must not matter
    train(parts, progress=False)
    assert_same(losses(tmp_path / 'parts'), losses(tmp_path / 'whole'))

def test_two_processes(home, tmp_path, trained, server):
    "Two processes on halves of each batch follow the run of one; fine-tuning runs too."
    tune = FinetuneConfig(data=str(home), out=str(tmp_path / 'tuned'), head_steps=2, joint_steps=2,
                          batch_size=8, log_every=1, eval_sequences=16, final_sequences=16,
                          precision='fp32')
    env = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1',
               MASTER_PORT=str(random.randint(20000, 60000)))
    both = [server.Process(target=train_there, args=(
        env | dict(RANK=k, LOCAL_RANK=k), small(home, tmp_path / 'two'), tune)) for k in '01']
    for p in both: p.start()
    for p in both: p.join(240)
    assert [p.exitcode for p in both] == [0, 0]
    a, b = losses(tmp_path / 'two'), losses(trained)
    assert len(a) == STEPS and all(a[s][0] == pytest.approx(b[s][0], rel=1e-3) for s in a)
    assert [len(losses(tmp_path / 'tuned' / s)) for s in ('head', 'joint')] == [2, 2]

def test_minutes_decide_how_long_and_a_resumed_run_keeps_its_steps(lines, tmp_path):
    cfg = nano(lines, tmp_path / 'run', epochs=2, minutes=1e-4, tokens=None)
    train(cfg, progress=False)
    again = read_config(TrainConfig, out=tmp_path / 'run')     # all that need be given
    assert (again.data, again.tokens, again.dim) == (str(lines), None, 8)
    train(again, progress=False)
    assert len(losses(tmp_path / 'run')) == 2

# damage

def test_the_last_good_checkpoint_stays_and_a_damaged_one_is_a_sentence(lines, tmp_path,
                                                                        monkeypatch):
    cfg, path = nano(lines, tmp_path, 4), tmp_path / 'last.pt'
    real = Trainer.train_step
    def spoilt(tr, *a):
        result = real(tr, *a)
        if tr.step == 4:
            with torch.no_grad(): next(tr.objective.model.parameters()).view(-1)[0] = math.nan
        return result
    with monkeypatch.context() as m:
        m.setattr(Trainer, 'train_step', spoilt)
        with pytest.raises(FloatingPointError, match='step 4: NaN .*not saved'):
            train(cfg, progress=False)
    assert torch.load(path, weights_only=True)['progress'][0] == 3
    assert not (tmp_path / 'model').exists()
    whole = path.read_bytes()
    for damaged in (whole[:len(whole) // 2], b'text'):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match='last.pt: damaged; delete it, and the run starts'):
            train(cfg, progress=False)
    path.write_bytes(whole)
    assert train(cfg, progress=False) == tmp_path / 'model'

# refused

@pytest.mark.parametrize('kw, match', [
    (dict(tokenizer='tok.json'), 'tok.json'),
    (dict(data='none.txt'), 'none.txt'), (dict(batch_size=5000), 'batch_size=5000'),
    (dict(out='a.txt/run'), 'cannot be written')], ids=str)
def test_bad_settings_begin_nothing(lines, tmp_path, monkeypatch, kw, match):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'a.txt').write_text('a file')
    cfg = small(lines, **dict(out='r') | kw)
    with pytest.raises((ValueError, FileNotFoundError), match=match): train(cfg, progress=False)
    assert not (tmp_path / 'r' / 'model').exists()

def test_a_run_keeps_its_settings_and_its_folder(home, lines, tmp_path, trained):
    with pytest.raises(ValueError, match='lr: 0.01 there, 0.5 now'):
        train(small(home, trained, lr=.5), progress=False)
    (tmp_path / 'model').write_text('mine')
    with pytest.raises(ValueError, match='no run.json.*model'):
        train(nano(lines, tmp_path), progress=False)
    assert (tmp_path / 'model').read_text() == 'mine'
