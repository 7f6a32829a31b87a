"""The conformance kit: right samplers conform, and planted errors are found and named."""
import functools, json, sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from navira.hosts.conformance import causes, conform, conformance_report, is_draws

sys.path.insert(0, str(Path(__file__).parent))
from planted import llada, PLANTED, samplers

FILE = files('navira')/'assets'/'conformance.json'


# ---- The file

def test_it_is_one_file_of_two_megabytes_with_a_version():
    text = FILE.read_bytes()
    assert len(text) <= 2e6 and json.loads(text)['version'] == 1

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

@pytest.mark.parametrize('kind', [np.ndarray.tolist, torch.from_numpy, np.int16],
                         ids=['lists', 'torch', 'int16'])
def test_ids_may_come_as_lists_tensors_or_arrays(kind):
    def step(**given): return kind(llada(**{k: v for k, v in given.items() if k in NAMES}))
    outcomes = [out for out in conform({'llada-low-confidence': step}) if not is_draws(out.case)]
    assert len(outcomes) > 2 and not [out for out in outcomes if out.departs]

NAMES = {*'ids logits prompt mask_id step steps noise temperature block_length'.split()}

def test_a_slip_that_the_kit_does_not_know_is_said_so():
    def step(ids, mask_id): return np.where(ids == mask_id, 0, ids)
    text = conformance_report(conform({'llada-low-confidence': step}))
    assert 'likely cause: none that is known' in text
    assert 'step 0 of 5: row 0, position' in text

def test_a_text_that_the_rule_does_not_read_is_shown():
    "A sampler that remasks other tokens asks for logits that are not recorded"
    def step(ids, quality, logits, prompt, mask_id, step, steps, noise, model, n_remask, on):
        return samplers['navira-det'](ids, logits, -quality, prompt, mask_id, step, steps, noise,
                                      model, on=on, n_remask=n_remask)
    text = ' '.join(conformance_report(conform({'navira-det': step})).split())
    assert 'asked for' in text and 'the sign of the quality is reversed' in text

@pytest.mark.parametrize('read, sentence', [(np.zeros_like, 'asked for 0 0 0 0'),
                                            (lambda ids: ids[:, :3], 'expected whole texts'),
                                            (lambda ids: ids * 1., 'got float64 of shape')])
def test_in_a_case_of_draws_too_the_model_reads_only_what_the_rule_reads(read, sentence):
    def step(ids, model, seed):
        model(read(ids))
        return ids
    outcomes = [out for out in conform({'mdlm': step}) if not out.lacks]
    assert outcomes and all(out.departs for out in outcomes)
    assert sentence in conformance_report(outcomes)

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

def test_an_exception_in_a_later_step_is_reported_there():
    def late(ids, logits, prompt, mask_id, step, steps, noise):
        if step == 3: raise RuntimeError('no third step')
        return llada(ids, logits, prompt, mask_id, step, steps, noise)
    out = next(out for out in conform({'llada-low-confidence': late}) if not out.lacks)
    assert 'step 3 of 5: RuntimeError: no third step' in conformance_report([out])

@pytest.mark.parametrize('rule, f, sentence', [
    ('llada-low-confidenc', llada, "did you mean 'llada-low-confidence'"),
    ('mdlm', 'step', "mdlm: got 'step'; expected a function"),
    ('mdlm', lambda logit: 0, "argument 'logit': did you mean 'logits'")])
def test_a_sampler_that_is_none_is_named(rule, f, sentence):
    with pytest.raises((KeyError, ValueError)) as e: conform({rule: f})
    assert sentence in str(e.value)
