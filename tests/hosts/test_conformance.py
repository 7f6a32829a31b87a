"""The conformance kit: right samplers conform, and planted errors are found and named."""
import functools, sys

import numpy as np
import pytest

from navira.hosts.conformance import causes, conform, conformance_report

from helpers.planted import llada, PLANTED, samplers


# ---- The file


# ---- Samplers of others

@pytest.mark.parametrize('rule', samplers)
def test_a_right_sampler_conforms(rule):
    played = [out for out in conform({rule: samplers[rule]}) if not out.lacks]
    assert played and not [out for out in played if out.departs]

@pytest.mark.parametrize('rule, slip, words', PLANTED, ids=[f'{r}-{s}' for r, s, _ in PLANTED])
def test_a_planted_error_is_found_and_named(rule, slip, words):
    outcomes = conform({rule: functools.partial(samplers[rule], slip=slip)})
    assert any(out.departs for out in outcomes)
    named = causes(outcomes)
    assert len(named) <= 3 and any(words in k for k in named), named
    text = conformance_report(outcomes)
    assert ' '.join(named[0].split()[:3]) in text and max(map(len, text.splitlines())) <= 80


def test_a_slip_that_the_kit_does_not_know_is_said_so():
    def step(ids, mask_id): return np.where(ids == mask_id, 0, ids)
    text = conformance_report(conform({'llada-low-confidence': step}))
    assert 'likely cause: none that is known' in text
    assert 'step 0 of 5: row 0, position' in text


BAD = {
    'floats': (lambda ids: ids * 1., 'returned float64 of shape [2, 8]; expected whole numbers'),
    'flat': (lambda ids: ids[0], 'returned int64 of shape [8]; expected whole numbers'),
    'nothing': (lambda ids: None, 'returned object of shape []; expected whole numbers'),
    'ended': (lambda ids: sys.exit(0), 'SystemExit: 0'),
    'raised': (lambda ids: ids[:, 9], 'IndexError: index 9 is out of bounds')}

@pytest.mark.parametrize('kind', BAD)
def test_what_is_no_answer_is_named_and_the_others_go_on(kind):
    f, sentence = BAD[kind]
    outcomes = conform({'fast-dllm': f, 'mdlm': samplers['mdlm']})
    bad, *others = [out for out in outcomes if not out.lacks]
    assert bad.rule == 'fast-dllm' and bad.departs and sentence in bad.error
    assert len(others) > 2 and not [out for out in others if out.departs]
    assert f'case 1 (defaults), step 0 of 5: {bad.error[:20]}' in conformance_report([bad])


@pytest.mark.parametrize('rule, f, sentence', [
    ('llada-low-confidenc', llada, "did you mean 'llada-low-confidence'"),
    ('mdlm', 'step', "mdlm: got 'step'; expected a function"),
    ('mdlm', lambda logit: 0, "argument 'logit': did you mean 'logits'")])
def test_a_sampler_that_is_none_is_named(rule, f, sentence):
    with pytest.raises((KeyError, ValueError)) as e: conform({rule: f})
    assert sentence in str(e.value)
