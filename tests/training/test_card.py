"""What was trained, on what, for how long, and how good it is."""
import json, math

import pytest
import torch

from navira.models.sources import WEIGHTS
from navira.models.load import load
from navira.training.runs import read_log
from navira.training.pretraining import train
from navira.training.card import embedded_record, export, record_of
from helpers.training import begun, copied, home, lines, one_thread, trained  # noqa: F401

def test_pretraining_learns_and_exports(trained):
    record = json.loads((trained / 'model' / 'training.json').read_text())
    evals = [e['nelbo'] for e in record['stages'][0]['evals']]
    assert evals[-1] < evals[0] < math.log(299) + .5
    again = export(trained, trained / 'half', dtype=torch.bfloat16)
    assert load(trained / 'half').backbone.vocab_embed.embedding.dtype == torch.float32
    assert abs(again['nelbo']['value'] - record['nelbo']['value']) < .05

def test_a_setting_that_nobody_knows_is_left_out(copied):
    out, _ = copied
    path = out / 'run.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(of_tomorrow=1)))
    assert export(out, out / 'again')['stages']

def test_a_damaged_line_of_the_log(copied):
    "The log is a record: what is damaged in it is left out and said, and the run goes on and ends."
    out, cfg = copied
    log = out / 'log.jsonl'
    whole = read_log(log)
    for bad in (b'{}', b'5', b'{"step": "x"}', b'\xff\xfe', b'[' * 100_000, b'{"step": 1, "loss": [1]}'):
        log.write_bytes(bad + b'\n' + b''.join(json.dumps(r).encode() + b'\n' for r in whole) + b'{"step": 3')
        with pytest.warns(UserWarning, match=r'log\.jsonl, line 1: damaged, left out') as said:
            assert read_log(log) == whole
        assert len(said) == 1                                  # none for the unfinished last line
    with pytest.warns(UserWarning, match='line 1: damaged'): assert train(cfg, progress=False) == out / 'model'
    assert [r['step'] for r in read_log(log) if 'loss' in r] == [1, 2, 3, 4]
    log.write_text('')
    with pytest.raises(ValueError, match=r'log\.jsonl: holds no record of a step'): export(out, out / 'again')

@pytest.mark.parametrize('inside', ['', 'model'])
def test_finetuning_keeps_the_record_of_its_model(monkeypatch, tmp_path, inside):
    "Of the embedded model by name or none, of a folder, and of a run's folder."
    folder = tmp_path / 'source' / inside
    folder.mkdir(parents=True)
    for name in ('config.json', 'training.json'): (folder / name).write_text('{"stages": [1]}')
    monkeypatch.setattr('navira.training.card.WEIGHTS', tmp_path / 'source')
    for model in (None, 'embedded', str(tmp_path / 'source')): assert record_of(model) == dict(stages=[1])
    (folder / 'training.json').write_text('{')
    with pytest.raises(ValueError, match=r'training\.json: damaged'): record_of(None)
    (folder / 'training.json').unlink()
    assert record_of(None) == {}

def test_the_embedded_record_is_found():
    "Bits a character of the models that ship, and how their training went"
    r, critic = embedded_record(), embedded_record(WEIGHTS / 'critic-training.json')
    assert r and 1 < r['nelbo']['bits_per_char'] < 3 and r['stages'] and critic
