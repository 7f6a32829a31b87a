"""What was trained, on what, for how long, and how good it is."""
import json

import pytest

from navira.models.sources import WEIGHTS
from navira.training.card import model_card

@pytest.mark.parametrize('folder', [WEIGHTS, WEIGHTS / 'sudoku'])
def test_numbers_in_the_card_are_the_records(folder):
    r = json.loads((folder / 'training.json').read_text())
    card = model_card(r)
    for number in (r['nelbo']['value'], r['quality']['auroc'], r['drawn_probability']['auroc'],
                   r['before']['value']): assert f'{number:.3f}' in card
