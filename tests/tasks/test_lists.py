"Operations on lists: right answers, the exact denoiser, what is refused."

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as some

import navira.peers  # noqa: F401
from navira.sampling import sample
from navira.tasks.lists import Lists, made_of, OPS
from navira.tasks.sudoku import symbol_tokenizer
from navira.tasks.task import task_of
from navira.tasks.walks import Exact

RIGHT = {'lists-copy': list, 'lists-reverse': lambda x: x[::-1], 'lists-sort': sorted}
seeds = some.integers(0, 2**32)


@pytest.mark.parametrize('op', OPS)
def test_answers_are_what_the_operation_says(op):
    rows = Lists(op).draw(50, np.random.default_rng(0)).tolist()
    texts = map(symbol_tokenizer(Lists()).decode, rows)
    for text in texts:
        items, answer = [*text[1:9]], [*text[9:]]
        assert text[0] == OPS[op] and len({*items}) == 8
        if op in RIGHT: assert answer == RIGHT[op](items)
        else: assert sorted(answer) == sorted(items)


@settings(max_examples=20, deadline=None)
@given(first=some.integers(0, 300), n=some.integers(1, 100))
def test_a_prompt_has_a_number(first, n):
    "Whatever else is asked for with it"
    for task in (Lists(), Lists('lists-sort')):
        x = task.prompts(first, n)
        assert x.equal(task.prompts(0, first + n)[first:])
        assert ((x == 20) == (torch.arange(17) >= 9)).all()


def test_all_operations_are_asked_alike():
    which = Lists().prompts(0, 400)[:, 0]
    assert which.bincount().tolist() == [100] * 4


@pytest.mark.parametrize('op', OPS)
def test_another_answer_is_wrong(op):
    task = Lists(op)
    right = torch.from_numpy(task.draw(105, np.random.default_rng(21)))
    assert task.solved(right).all() and not task.solved(task.prompts(0, 105)).any()
    twice = right.clone()
    twice[:, 9] = twice[:, 10]
    assert not task.solved(twice).any()
    swapped = right[:, [*range(15), 16, 15]]
    assert (task.solved(swapped) == (op == 'lists-shuffle')).all()


# --- the exact denoiser
@settings(max_examples=10, deadline=None)
@given(seed=seeds, visible=some.integers(0, 7))
def test_the_denoiser_of_a_shuffle_is_what_all_orders_give(seed, visible):
    rng = np.random.default_rng(seed)
    (x,) = Lists('lists-shuffle').draw(1, rng)
    every = x[1:9][np.array([*itertools.permutations(range(8))])]
    at = rng.permutation(8)[:visible]
    fits = every[(every[:, at] == x[9 + at]).all(1)]
    x[np.setdiff1d(np.arange(9, 17), 9 + at)] = 20
    got = Lists().given(torch.from_numpy(x[None]))[0, 9:].numpy()
    for i in {*range(8)} - {*at}:
        expected = np.bincount(fits[:, i], minlength=21) / len(fits)
        np.testing.assert_allclose(got[i], expected, atol=1e-12)


def test_what_is_certain_can_be_written_at_once_and_a_shuffle_one_by_one():
    for op in OPS:
        task = Lists(op)
        for T in (1, 8):
            out = sample(Exact(Lists()), 'backbone', T, prompt=task.prompts(0, 200), top_p=1.0,
                         progress=False).tokens
            share = task.solved(out).mean()
            assert share == 1 if op != 'lists-shuffle' or T == 8 else share < 0.05


def test_every_order_of_a_shuffle_is_drawn_alike():
    "One token a pass: the place of the first item"
    x = Lists('lists-shuffle').prompts(0, 1).expand(4000, -1)
    out = sample(Exact(Lists()), 'backbone', 8, prompt=x, top_p=1.0, progress=False).tokens
    place = (out[:, 9:] == x[:, 1:2]).int().argmax(1).bincount(minlength=8)
    assert ((place - 500) ** 2 / 500).sum() < 30     # of 7 degrees of freedom


def test_what_is_no_list_is_refused():
    with pytest.raises(ValueError, match='expected whole prompts'):
        sample(Exact(Lists()), 'backbone', 4, n=2, progress=False)
    for name in ('lists-sorted', 'lists-'):
        with pytest.raises(KeyError, match='lists-'): Lists(name)
        with pytest.raises(KeyError, match='lists-'): task_of(name, Exact(Lists()))


def test_corpora_have_names():
    assert made_of('lists-sort') == Lists('lists-sort') and made_of('books.txt') is None
    assert made_of('walks').length == 32 and made_of('sudoku').length == 81
