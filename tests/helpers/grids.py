"""What tests on grids share: a model that knows nothing, and one that knows everything."""

import functools

import numpy as np
import pytest
import torch

from navira.diffusion import Denoiser
from navira.hosts.servers import Ran
from navira.models.dit import MaskedLM
from navira.models.layers import Config
from navira.tasks.sudoku import solutions, Sudoku, symbol_tokenizer

four = Sudoku(2, 2)


def novice(s=four, quality=True, seed=0):
    "Random weights; a head too"
    torch.manual_seed(seed)
    config = Config(
        vocab_size=s.n + 1,
        model_length=s.cells,
        hidden_dim=16,
        cond_dim=8,
        n_blocks=2,
        n_heads=2,
        dropout=0.0,
        boxes=(s.height, s.width),
        quality_blocks=1 if quality else None,
    )
    model = MaskedLM(config, symbol_tokenizer(s)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape))
    return model


@functools.cache
def all_four():
    return torch.from_numpy(np.stack(list(solutions(four, np.full(16, 4)))))


class Exact(Denoiser):
    "The posterior of each empty cell of a 4 x 4 grid, by counting; where nothing fits, uniform."

    mask_id, length, tokenizer = 4, 16, symbol_tokenizer(four)
    vocab_size, boxes = 5, (2, 2)

    def __call__(self, x):
        fits = ((x[:, None] == 4) | (x[:, None] == all_four())).all(2)  # [B, 288]
        share = torch.einsum(
            'bg,gcd->bcd', fits.double(), torch.nn.functional.one_hot(all_four(), 5).double()
        )
        share[..., :4] += share.sum(-1, keepdim=True) == 0
        return Ran(x, share.log(), 4, torch.arange(len(x)))


@pytest.fixture(scope='session')
def grid_folder(tmp_path_factory):
    "The model that knows nothing, saved"
    from navira.models.load import save

    folder = tmp_path_factory.mktemp('novice') / 'model'
    save(novice(), folder)
    return folder
