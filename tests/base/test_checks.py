"""What is a number: whole ones, of Python or NumPy, and nothing else."""

import numpy as np
import pytest
import torch

import navira
from toys import small_lm


@pytest.mark.parametrize('name, part', [
    ('steps', 'budget='), ('gen_length', 'max_new_tokens='), ('bad_words_ids', 'constrained'),
    ('cfg_scale', 'guided'), ('torch_dtype', 'dtype='), ('load_in_4bit', 'quantization_config='),
    ('do_sample', 'temperature='), ('stop', 'end-of-text'), ('messages', 'navira.chat')])
def test_names_of_other_libraries_are_answered_with_ours(name, part):
    model = navira.load()
    for call in (lambda **how: navira.sample(model, 'backbone', **how), navira.load,
                 lambda **how: navira.fill('a ___', model=model, policy='backbone', **how)):
        with pytest.raises(KeyError) as e: call(**{name: 1})
        assert name in str(e.value) and part in str(e.value)

def test_numbers_of_numpy_are_numbers():
    model = small_lm()
    hyper = dict(eta=np.float32(.25), n_remask=np.int64(1))
    a = navira.sample(model, 'prism', np.int64(6), np.int32(2), np.uint8(3), **hyper)
    assert torch.equal(a.tokens, navira.sample(model, 'prism', 6, 2, 3, eta=.25, n_remask=1).tokens)
    for wrong in (dict(budget=np.float32(2.5)), dict(n=np.bool_(True)), dict(seed=np.nan)):
        with pytest.raises(ValueError): navira.sample(model, 'prism', **wrong)
