"""The conformance kit: our own rules and right samplers conform; planted errors are found and
named."""
import functools, sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from navira.base.noise import Noise
from navira.core import State, step
from navira.diffusion import Denoiser
from navira.hosts.conformance import (
    causes, conform, conformance_report, is_draws, recorded, recorded_model)
from navira.hosts.servers import Ran
from navira.sampler.registry import parameters, policies, policy
from helpers.planted import llada, PLANTED, samplers

RULES = recorded()['rules']

# ---- Our own rules

class Recorded(Denoiser):
    "The model of a case"
    has_quality = True
    def __init__(self, case):
        self.read, self.mask_id = recorded_model(case), case['mask_id']
        self.length = len(case['prompt'][0])

    def __call__(self, x):
        logits, quality = map(torch.from_numpy, self.read(x.numpy()))
        return Ran(x, logits, self.mask_id, torch.arange(len(x)), quality.double())

class Given(Noise):
    "Recorded numbers; others change nothing in a case"
    def __init__(self, numbers, samples):
        super().__init__(0, samples)
        self.numbers = numbers

    def __getitem__(self, rows): return Given({k: v[rows] for k, v in self.numbers.items()},
                                              self.samples[rows])

    def uniform(self, i, purpose, length):
        if purpose in self.numbers: return self.numbers[purpose]
        return super().uniform(i, purpose, length)

def answers(rule, case, rows):
    "Ids after each step of our rule, by its own `step`"
    def batch(v, dtype): return torch.tensor(np.array(v, dtype)).expand(rows, -1)
    model, samples, first = Recorded(case), torch.arange(rows), case['steps'][0]
    critic = dict(critic=model) if 'critic' in parameters(policies()[rule]) else {}
    own = policy(rule, **critic, **case['hyper'])
    st = State.start(batch(first['ids'], int), model.mask_id, case['n'], Noise(0, samples))
    st = replace(st, conf=batch(first['conf'], float))
    for record in case['steps']:
        # tokens are drawn from keys; others get the numbers that these make
        numbers = {k: batch(v, float) for k, v in record['noise'].items() if np.ndim(v) == 2}
        numbers |= {k: (batch(v, float) + .5) / 2**52 for k, v in record.get('keys', {}).items()}
        st = replace(st, x=batch(record['ids'], int), i=record['step'],
                     fixed=batch(case['prompt'], bool), noise=Given(numbers, samples))
        st = step(own, st, model)
        yield st.x.tolist()

def test_our_own_rules_write_the_recorded_ids():
    for rule, cases in RULES.items():
        for case in cases:
            if is_draws(case): continue
            after = [record['after'] for record in case['steps']]
            assert [*answers(rule, case, len(case['prompt']))] == after, rule

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
    assert f'likely cause: {named[0]}' in conformance_report(outcomes)

def test_a_slip_that_the_kit_does_not_know_is_said_so():
    def step(ids, mask_id): return np.where(ids == mask_id, 0, ids)
    text = conformance_report(conform({'llada-low-confidence': step}))
    assert 'likely cause: none that is known' in text
    assert 'step 0 of 5: row 0, position' in text
    def floats(ids, model): return model(ids * 1.)
    text = conformance_report(conform({'llada-low-confidence': floats}))
    assert 'asked for _ _' in text and 'whose logits the rule does not read' in text

@pytest.mark.parametrize('f, sentence', [
    (lambda ids: ids[0] * 1., 'returned float64 of shape [8]; expected whole numbers'),
    (lambda ids: None, 'returned object of shape []; expected whole numbers'),
    (lambda ids, logit: ids, "missing 1 required positional argument: 'logit'"),
    (lambda ids: sys.exit(0), 'SystemExit: 0')])
def test_what_is_no_answer_is_named_and_the_others_go_on(f, sentence):
    outcomes = conform({'fast-dllm': f, 'llada-low-confidence': llada})
    bad, *others = [out for out in outcomes if not out.lacks]
    assert bad.rule == 'fast-dllm' and bad.departs and sentence in bad.error
    assert len(others) > 2 and not [out for out in others if out.departs]
    assert f'case 1 (defaults), step 0 of 5: {bad.error}' in conformance_report([bad])
