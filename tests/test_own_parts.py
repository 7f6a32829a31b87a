"""A policy, a score or a model of one's own: what it may ask for, and that the part that breaks
what every policy keeps is named before anything is lost."""
from dataclasses import replace

import pytest
import torch

import navira
from navira.core import (
    needs_quality, n_unmask, nothing, random_order, Step, TopK)
from navira.decoupling import navira_det
from navira.peers.blocks import Within
from navira.prism import low_quality, prism
from navira.sampler.draws import TokenSampler
from helpers.peers import WITHOUT_CRITIC
from helpers.sample_api import says
from toys import small_lm

L, MASK = 12, 10
def text(model, policy): return navira.sample(model, policy, 12, 3, 0, L, [[1, 2, 3]])

# ---- scores and draws

class Zeros(TokenSampler):
    "Writes token 0 everywhere, whatever it is given."
    def __call__(self, logits, u, *text): return torch.zeros(len(u), dtype=torch.int64), u

def test_a_draw_of_ones_own_draws_though_a_score_has_read_its_distributions():
    policy = replace(navira.policy('dream-entropy'), draw=Zeros(top_p=.9))
    assert (text(small_lm(), policy).tokens[:, 3:] == 0).all()

@pytest.mark.parametrize('decorated', [False, True])
def test_a_score_need_not_say_that_it_reads_qualities(decorated):
    """The decorator only has a model without a head refused before any work; without it the
    first question is refused"""
    def mine(st, p, where): return -p.quality(where)
    score = needs_quality(mine) if decorated else mine
    own = replace(navira_det(n_remask=1, on=0.), remask=TopK(score, 1))
    assert own.reads_quality == decorated
    det = replace(own, remask=TopK(low_quality, 1))
    assert torch.equal(text(small_lm(), own).tokens, text(small_lm(), det).tokens)
    with says(ValueError, 'quality head'): text(small_lm(quality_blocks=None), own)

# ---- what parts return

def takes_all(st, p, eligible): return torch.ones_like(eligible)
def takes_committed(st, p, eligible):
    return TopK(random_order, n_unmask)(st, p, eligible) | st.committed
def as_numbers(st, p, eligible): return eligible.float()

class Erases(Step):
    def __call__(self, policy, st, model, watch):
        return replace(st, x=torch.full_like(st.x, st.mask_id)).next(torch.ones(len(st.x)))

class Stays(Step):
    def __call__(self, policy, st, model, watch): return st

@pytest.mark.parametrize('part, wrong, words', [
    ('remask', takes_all, ['takes_all', 'prompt']), ('unmask', Within(4, takes_all), ['prompt']),
    ('unmask', takes_committed, ['takes_committed', 'may not be picked']),
    ('unmask', as_numbers, ['as_numbers', 'bool tensor']),
    ('unmask', nothing, ['unmask', 'left', 'masks']),
    ('unmask', TopK(lambda st, p, where: torch.zeros(3, 12, 1), n_unmask), ['one number a posi']),
    ('unmask', TopK(random_order, lambda st: torch.ones(7)), ['(7,)', 'expected a number']),
    ('draw', lambda logits, *_: logits.argmax(-1), ['draw', 'expected token ids']),
    ('draw', lambda logits, u, *_: (torch.full((len(u),), MASK), u), ['draw', 'but for the mask']),
    ('draw', lambda logits, u, *_: (logits.argmax(-1), u * torch.nan), ['draw', 'no probability']),
    ('step', Erases(), ['step: Erases', 'prompt']), ('step', Stays(), ['step: Stays', 'step']),
    ('step', Step(plan=lambda *_: 0), ['steps'])])
def test_the_part_that_is_wrong_is_named(part, wrong, words):
    with says(ValueError, *words): text(small_lm(), replace(prism(), **{part: wrong}))

def test_what_is_no_rule_makes_no_policy():
    with says(ValueError, 'remask=3', 'expected a rule'): replace(prism(), remask=3)

# ---- numbers that are none

@pytest.mark.parametrize('name', WITHOUT_CRITIC)
def test_logits_that_are_no_numbers_end_the_run(name):
    model = small_lm()
    with torch.no_grad(): model.backbone.output_layer.linear.bias[4] = torch.nan
    with says(ValueError, 'logits', 'diverged'): text(model, name)

@pytest.mark.parametrize('name', ['prism', 'navira', 'navira-onepass', 'remedi'])
def test_a_quality_that_is_no_number_ends_the_run(name):
    model = small_lm()
    with torch.no_grad(): [p.fill_(torch.nan) for p in model.quality.parameters() if p.ndim == 1]
    with says(ValueError, 'quality', 'diverged'): navira.sample(model, name, 24, 16, length=L)


