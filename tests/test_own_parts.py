"""A policy, a score or a model of one's own: what it may ask for, and that the part that breaks
what every policy keeps is named before anything is lost."""
from dataclasses import replace

import pytest
import torch

import navira
from navira.core import (
    needs_quality, n_unmask, nothing, Policy, random_order, Step, TopK, unmask_until)
from navira.decoupling import navira_det
from navira.peers.blocks import Within
from navira.prism import backbone, low_quality, prism
from navira.sampler.draws import TokenSampler
from helpers.peers import WITHOUT_CRITIC
from helpers.sample_api import says
from toys import small_lm, Tiny

L, MASK = 12, 10
def text(model, policy): return navira.sample(model, policy, 12, 3, 0, L, [[1, 2, 3]])

# ---- a score asks for what it likes

WANTS = dict(     # where a score asks for logits, [B, L]
    everywhere=lambda st, where: torch.ones_like(where), prompt=lambda st, where: st.fixed,
    other_rows=lambda st, where: ~where.any(1, keepdim=True) & st.masked)
PARTS = [(backbone(), 'unmask')] + [(rule(eta=.3, on=0.), part) for rule in (prism, navira_det)
                                    for part in ('unmask', 'remask')]

@pytest.mark.parametrize('wants', WANTS)
def test_a_score_may_ask_for_any_logits_of_any_row(wants, one_thread):
    """It gets the right numbers, the texts are those of the score that does not ask, and it is
    never cheaper"""
    for rule, part in PARTS:
        inner, seen, models = vars(rule)[part], [], (Tiny(L, 5), Tiny(L, 5))
        def curious(st, p, where):
            at = WANTS[wants](st, where)
            if at.any(): seen.append((p.x, at, p.logits(at), p.quality(torch.ones_like(where))))
            return inner.score(st, p, where)
        rules = rule, replace(rule, **{part: replace(inner, score=curious)})
        a, b = (navira.sample(m, r, 12, 3, 4, L, [[1], [1, 2, 3], [4, 0] * 3])
                for m, r in zip(models, rules))
        assert torch.equal(a.tokens, b.tokens) and (b.n_forward >= a.n_forward).all()
        assert b.n_forward.sum() == sum(models[1].rows)
        for x, at, logits, quality in seen:
            p = Tiny(L, 5)(x)
            torch.testing.assert_close(logits, p.logits(at))
            torch.testing.assert_close(quality, p.quality())

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


def test_whole_numbers_rank_and_a_count_of_yours_gets_plain_steps():
    def leftmost(st, p, where): return -torch.arange(st.x.shape[1]).expand(st.x.shape)
    def late(N, i, T): return N if i + 1 == T else N // T * (i + 1)
    seen, policy = [], Policy(unmask=TopK(leftmost, unmask_until(late)))
    out = navira.sample(Tiny(8, 4), policy, 4, 2, trace=True)
    for x in out.trace.x: seen += [(row != 4).int().diff().max().item() for row in x]
    assert max(seen) <= 0                      # what is written is always a prefix
