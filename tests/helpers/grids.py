"What tests on grids share: a model that knows nothing."
import pytest

from navira.models.load import save
from navira.tasks.sudoku import Sudoku, symbol_tokenizer
from toys import small_lm

def novice():
    "Of 4 x 4 grids"
    model = small_lm(vocab_size=5, model_length=16, boxes=(2, 2))
    model.tokenizer = symbol_tokenizer(Sudoku(2, 2))
    return model

@pytest.fixture(scope='session')
def grid_folder(tmp_path_factory):
    "The model that knows nothing, saved"
    folder = tmp_path_factory.mktemp('novice') / 'model'
    save(novice(), folder)
    return folder
