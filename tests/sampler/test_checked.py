"""A policy, a score or a model of one's own: what it may ask for, and that the part that breaks
what every policy keeps is named before anything is lost."""
from dataclasses import replace
import pytest, torch
import navira
from navira.core import (
    needs_quality, n_unmask, nothing, random_order, Step, TopK)
from navira.decoupling import navira_det
from navira.prism import backbone, low_quality, prism
from helpers.peers import WITHOUT_CRITIC
from toys import Tiny, small_lm

L, PROMPT, MASK = 12, [[1, 2, 3]], 10
def text(model, policy, **kw): return navira.sample(model, policy, 12, 3, 0, L, PROMPT, **kw)

def refused(policy, *words, model=None):
    with pytest.raises(ValueError) as e:
        text(model or small_lm(), policy() if callable(policy) else policy)
    assert all(w in str(e.value) for w in words), str(e.value)

# ---- a score asks for what it likes

WANTS = dict(     # where a score asks for logits, [B, L]
    everywhere=lambda st, where: torch.ones_like(where), committed=lambda st, where: st.committed,
    prompt=lambda st, where: st.fixed, other_rows=lambda st, where: ~where.any(1, keepdim=True)
    & st.masked)

def curious(score, wants, seen):
    "`score`, after it has asked for logits elsewhere and for qualities everywhere"
    def asks(st, p, where):
        at = wants(st, where)
        if at.any(): seen.append((p.x, at, p.logits(at), p.quality(torch.ones_like(where))))
        return score(st, p, where)
    return asks

BASES = dict(backbone=backbone(), prism=prism(eta=.3, on=0.), navira_det=navira_det(eta=.3, on=0.))
PARTS = [(base, part) for base in BASES for part in ('unmask', 'remask')
         if (base, part) != ('backbone', 'remask')]

@pytest.mark.parametrize('wants', WANTS)
@pytest.mark.parametrize('base, part', PARTS)
def test_a_score_may_ask_for_any_logits_of_any_row(base, part, wants, one_thread):
    """It gets the right numbers, the texts are those of the score that does not ask, and it is
    never cheaper"""
    rule, seen, plain, model = BASES[base], [], Tiny(L, 5), Tiny(L, 5)
    inner = dict(unmask=rule.unmask, remask=rule.remask)[part]
    own = replace(rule, **{part: replace(inner, score=curious(inner.score, WANTS[wants], seen))})
    prompts = [[1], [1, 2, 3], [4, 0] * 3]
    a, b = (navira.sample(m, r, 12, 3, 4, L, prompts) for m, r in ((plain, rule), (model, own)))
    assert torch.equal(a.tokens, b.tokens) and (b.n_forward >= a.n_forward).all()
    assert b.n_forward.sum() == sum(model.rows) and sum(model.asked) >= sum(plain.asked)
    for x, at, logits, quality in seen:
        p = Tiny(L, 5)(x)
        torch.testing.assert_close(logits, p.logits(at))
        torch.testing.assert_close(quality, p.quality())


@pytest.mark.parametrize('decorated', [False, True])
def test_a_score_need_not_say_that_it_reads_qualities(decorated):
    """The decorator only has a model without a head refused before any work; without it the
    first question is refused"""
    def mine(st, p, where): return -p.quality(where)
    own = replace(navira_det(n_remask=1, on=0.),
                  remask=TopK(needs_quality(mine) if decorated else mine, 1))
    assert own.reads_quality == decorated and not backbone().reads_quality and prism().reads_quality
    det = replace(own, remask=TopK(low_quality, 1))
    assert torch.equal(text(small_lm(), own).tokens, text(small_lm(), det).tokens)
    refused(own, 'quality head', model=small_lm(quality_blocks=None))


# ---- what parts return

def takes_all(st, p, eligible): return torch.ones_like(eligible)
def takes_committed(st, p, eligible): return TopK(random_order, n_unmask)(st, p,
                                                                          eligible) | st.committed
def as_numbers(st, p, eligible): return eligible.float()

class Erases(Step):
    def __call__(self, policy, st, model, watch):
        x = torch.full_like(st.x, st.mask_id)
        return replace(st, x=x).next(torch.ones(len(st.x), dtype=torch.long))


class Stays(Step):
    def __call__(self, policy, st, model, watch): return st

WRONG = {     # part -> what is wrong with it, and words of the sentence
    'remask': [(takes_all, 'takes_all', 'prompt'), (3, 'remask', 'expected a rule')],
    'unmask': [(takes_committed, 'takes_committed', 'may not be picked'), (as_numbers, 'as_numbers', 'bool tensor'),
               (nothing, 'masks'),
               (TopK(lambda st, p, where: torch.zeros(3, 12, 1), n_unmask),
                'one number a position'),
               (TopK(random_order, lambda st: torch.ones(7)), '(7,)', 'expected a number')],
    'draw': [(lambda logits, *_: logits.argmax(-1), 'expected'),
             (lambda logits, u, *_: (torch.full((len(u),), MASK), u), 'but for the mask'),
             (lambda logits, u, *_: (logits.argmax(-1), u * torch.nan), 'no probability')],
    'step': [(Erases(), 'Erases', 'prompt'), (Stays(), 'Stays', 'step')],
    'plan': [(lambda *_: 2.5, 'steps'), (lambda *_: 0, 'steps')],
}
CASES = [(part, *case) for part, cases in WRONG.items() for case in cases]

@pytest.mark.parametrize('part, wrong, words', [(p, w, words) for p, w, *words in CASES])
def test_the_part_that_is_wrong_is_named(part, wrong, words):
    if part == 'plan': part, wrong = 'step', Step(plan=wrong)
    refused(lambda: replace(prism(), **{part: wrong}), *words)


# ---- numbers that are none

def spoilt(value, where='logits'):
    model = small_lm()
    with torch.no_grad():
        if where == 'logits': model.backbone.output_layer.linear.bias[4] = value
        else: [p.fill_(value) for p in model.quality.parameters() if p.ndim == 1]
    return model

@pytest.mark.parametrize('name', WITHOUT_CRITIC)
def test_logits_that_are_no_numbers_end_the_run(name):
    refused(name, 'logits', 'diverged', model=spoilt(float('nan')))

@pytest.mark.parametrize('name', ['prism', 'navira', 'navira-onepass', 'remedi'])
def test_a_quality_that_is_no_number_ends_the_run(name):
    model = spoilt(float('nan'), 'quality')
    with pytest.raises(ValueError, match='quality.*diverged'): navira.sample(model, name, 24, 16,
                                                                             0, L, PROMPT)
