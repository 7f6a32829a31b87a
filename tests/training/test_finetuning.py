"""PRISM's second stage: a head that predicts which tokens are right."""
import json

import numpy as np
import pytest
import torch

from navira.models.load import load
from navira.training.settings import FinetuneConfig
from navira.training.runs import read_checkpoint, save_checkpoint
from navira.training.pretraining import tokens_of, train
from navira.training.finetuning import before, finetune, measured_correction, take_average
from helpers.training import home, lines, losses, nano, one_thread, tiny_model, trained  # noqa: F401

def test_the_average_is_taken_whole(tmp_path):
    model = tiny_model()
    average, buffers = (
        {n: torch.full_like(p, 0.5) for n, p in model.named_parameters()},
        {n: b.clone() for n, b in model.named_buffers()})
    assert buffers                                             # not averaged: only these may be missing
    save_checkpoint(tmp_path, dict(ema=average))
    take_average(model, tmp_path)
    assert all((p == 0.5).all() for p in model.parameters()) and all(
        torch.equal(b, buffers[n]) for n, b in model.named_buffers())
    save_checkpoint(tmp_path, dict(ema={n: a for n, a in average.items() if n != 'quality.output_layer.linear.weight'}))
    with pytest.raises(RuntimeError, match='Missing key.*quality.output_layer.linear.weight'):
        take_average(model, tmp_path)
    save_checkpoint(tmp_path, dict(ema=average | {'quality.extra': torch.ones(1)}))
    with pytest.raises(RuntimeError, match='Unexpected key.*quality.extra'): take_average(model, tmp_path)

def test_finetune_resumes_and_reports(home, tmp_path, trained):
    cfg = lambda out: FinetuneConfig(
        data=str(home), out=str(tmp_path / out), model=str(trained / 'model'), head_steps=6, joint_steps=6,
        batch_size=8, log_every=1, checkpoint_every=2, eval_every=6, eval_sequences=16, fill=3, precision='fp32')
    finetune(cfg('whole'), progress=False)
    for stop in (3, 5): assert finetune(cfg('parts'), progress=False, stop=stop) == tmp_path / 'parts'
    finetune(cfg('parts'), progress=False)
    for stage in ('head', 'joint'):
        assert (
            losses(tmp_path / 'parts' / stage) == losses(tmp_path / 'whole' / stage)
            and len(losses(tmp_path / 'whole' / stage)) == 6)
    model = load(tmp_path / 'whole' / 'model')
    assert model.quality is not None
    head = read_checkpoint(tmp_path / 'whole' / 'head')
    # stage 1 leaves the backbone alone
    for k, v in load(trained / 'model').backbone.state_dict().items():
        assert torch.equal(head['model'][f'backbone.{k}'], v)
    # stage 2 does not
    assert any(not torch.equal(v, head['model'][f'backbone.{k}']) for k, v in model.backbone.state_dict().items())
    record = json.loads((tmp_path / 'whole' / 'model' / 'training.json').read_text())
    q = record['quality']
    assert [s['name'] for s in record['stages']] == ['pretrain', 'head', 'joint']
    assert q['low'] <= q['auroc'] <= q['high']
    card = (tmp_path / 'whole' / 'model' / 'README.md').read_text()
    assert f"{record['quality']['auroc']:.3f}" in card and str(home) not in card and str(home) not in json.dumps(record)
    assert record['before']['n'] == record['nelbo']['n']

def test_self_correction_resumes_and_reports(home, tmp_path, trained):
    "To the last bit; the network has learned, the head is gone; the card says whose objective and what is corrected."
    cfg = lambda out: FinetuneConfig(
        data=str(home), out=str(tmp_path / out), model=str(trained / 'model'), objective='proseco', joint_steps=6,
        batch_size=8, log_every=1, checkpoint_every=2, eval_every=6, eval_sequences=16, precision='fp32')
    finetune(cfg('whole'), progress=False)
    for stop in (3, 5): assert finetune(cfg('parts'), progress=False, stop=stop) == tmp_path / 'parts'
    finetune(cfg('parts'), progress=False)
    assert losses(tmp_path / 'parts' / 'joint') == losses(tmp_path / 'whole' / 'joint')
    assert len(losses(tmp_path / 'whole' / 'joint')) == 6 and not (tmp_path / 'whole' / 'head').exists()
    one, two = (load(tmp_path / out / 'model').state_dict() for out in ('parts', 'whole'))
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
    model, base = load(tmp_path / 'whole' / 'model'), load(trained / 'model')
    assert model.quality is None and model.config.quality_blocks is None
    assert any(not torch.equal(v, model.backbone.state_dict()[k]) for k, v in base.backbone.state_dict().items())
    record = json.loads((tmp_path / 'whole' / 'model' / 'training.json').read_text())
    assert [s['name'] for s in record['stages']] == ['pretrain', 'joint'] and 'quality' not in record
    assert {'fixed', 'kept', 'nelbo'} <= record['stages'][1]['evals'][-1].keys()
    card = (tmp_path / 'whole' / 'model' / 'README.md').read_text()
    assert "Objective of `joint`: ProSeCo's (arXiv 2602.11590)" in card and 'objective proseco' in card
    for c in (record['correction'], record['before']['correction']):
        assert f"{c['kept']['value']:.3f}" in card and 0 <= c['kept']['value'] <= 1
    again = measured_correction(model, tokens_of(tmp_path / 'whole', 16)[1], None, 8)['correction']
    assert again['kept']['value'] == pytest.approx(record['correction']['kept']['value'])

def test_self_correction_leaves_a_head_behind_and_takes_a_new_one(home, tmp_path, trained):
    kw = dict(data=str(home), batch_size=8, eval_sequences=16, final_sequences=8, precision='fp32')
    first = finetune(FinetuneConfig(
        out=str(tmp_path / 'a'), model=str(trained / 'model'), head_steps=1, joint_steps=0, **kw), progress=False)
    assert load(first).quality is not None
    second = finetune(FinetuneConfig(
        out=str(tmp_path / 'b'), model=str(first), objective='proseco', joint_steps=1, **kw), progress=False)
    third = finetune(FinetuneConfig(
        out=str(tmp_path / 'c'), model=str(second), head_steps=1, joint_steps=0, **kw), progress=False)
    a, b = load(second), load(third)
    assert a.quality is None and b.quality is not None
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    stages = json.loads((third / 'training.json').read_text())['stages']
    assert [(s['name'], s['recipe'].get('objective')) for s in stages] == [
        ('pretrain', None), ('head', 'prism'), ('joint', 'proseco'), ('head', 'prism')]
    card = (third / 'README.md').read_text()
    assert 'Objective of `joint`' in card and '## Self-correction' not in card and '## Quality head' in card

def test_corpus_errors_come_before_the_accelerator(tmp_path, monkeypatch):
    for room in ('navira.training.settings', 'navira.training.pretraining'):
        monkeypatch.setattr(f'{room}.processes', lambda *a, **k: pytest.fail('an accelerator was touched'))
    (tmp_path / 'empty.txt').write_text(''); (tmp_path / 'latin.txt').write_bytes(b'caf\xe9 ' * 50)
    for name, error in dict(none=FileNotFoundError, empty=ValueError, latin=ValueError).items():
        for run in (
            lambda d: train(nano(d, tmp_path / 'run'), progress=False),
            lambda d: finetune(FinetuneConfig(data=str(d), out=str(tmp_path / 'run')), progress=False)):
            with pytest.raises(error, match=f'{name}.txt'): run(tmp_path / f'{name}.txt')
    assert not (tmp_path / 'run').exists()

@pytest.mark.parametrize('text', ['', '{', '[]', '{"value": "x", "se": 1}'])
def test_a_damaged_before(tmp_path, text):
    (tmp_path / 'before.json').write_text(text)
    with pytest.raises(ValueError, match=r'before\.json: damaged .*delete it'):
        before(tiny_model(), np.zeros((2, 16), np.int64), tmp_path)

def test_the_average_of_nothing(tmp_path):
    with pytest.raises(ValueError, match='holds no checkpoint'): take_average(tiny_model(), tmp_path)
    save_checkpoint(tmp_path, dict(step=1))
    with pytest.raises(ValueError, match='no averaged weights'): take_average(tiny_model(), tmp_path)

def test_a_rate_that_ruins_the_weights(lines, tmp_path, trained):
    "Nothing that is not finite is saved or exported."
    with pytest.raises(
        FloatingPointError, match=r'step 1: NaN or infinity in the weights .*no checkpoint was written.*lr=1e\+300'):
        train(nano(lines, tmp_path / 'a', 1, lr=1e300, warmup=0), progress=False)
    cfg = FinetuneConfig(
        data=str(lines), out=str(tmp_path / 'b'), model=str(trained / 'model'), head_steps=2, joint_steps=0,
        head_lr=1e300, warmup=0, batch_size=4, eval_sequences=2, precision='fp32')
    with pytest.raises(FloatingPointError, match='step 2: .*; no checkpoint was written'): finetune(cfg, progress=False)
    assert not list(tmp_path.glob('*/**/last.pt')) and not list(tmp_path.glob('*/model'))
