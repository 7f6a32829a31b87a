"""What was trained, on what, for how long, and how good it is."""
import json

import pytest

from navira.models.sources import WEIGHTS
from navira.training.card import model_card
from navira.training.loop import save_checkpoint
from navira.training.recipe import read_record, stage_record
from navira.training.settings import TrainConfig

def test_a_stage_is_recorded_up_to_its_checkpoint(tmp_path):
    cfg = TrainConfig(data='/home/me/books', out=str(tmp_path))
    steps = [dict(step=i, tokens=64 * i, loss=1 / i, seconds=2. * i) for i in range(1, 9)]
    lines = [*steps, dict(step=4, tokens=256, nelbo=2.)]
    (tmp_path / 'log.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    save_checkpoint(tmp_path, dict(step=6))
    s = stage_record(tmp_path, cfg, 'pretrain', points=3)
    assert (s['steps'], s['tokens'], s['seconds'], len(s['loss'])) == (6, 384, 12, 3)
    assert s['evals'] == [dict(step=4, tokens=256, nelbo=2.)]
    assert '/home/me' not in json.dumps(s) and s['recipe']['lr'] == .002

@pytest.mark.parametrize('folder', [WEIGHTS, WEIGHTS / 'sudoku'])
def test_numbers_in_the_card_are_the_records(folder):
    r, critic = (read_record(folder / f) for f in ('training.json', 'critic-training.json'))
    card = model_card(r, critic)
    for number in (r['nelbo']['value'], r['quality']['auroc'], r['drawn_probability']['auroc'],
                   critic['quality']['auroc'], r['before']['value']): assert f'{number:.3f}' in card
    assert '## Critic' not in model_card(r) and '{' not in card
    assert read_record(folder / 'nothing.json') is None
