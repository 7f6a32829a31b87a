"""The recorded cases: what the page makes, and what our own rules answer."""
import __future__
import json, sys, types

import numpy as np
import pytest
import torch

from navira.base.stats import holm
from navira.sampler.draws import exponentials
from navira.hosts.conformance import ALPHA, is_draws, p_of_draws, recorded
from helpers.peers import KINDS

RULES = recorded()['rules']


@pytest.fixture(scope='module')
def page(root):
    "What the page makes its cases with"
    book = json.loads((root/'nbs'/'hosts'/'conformance.ipynb').read_text(encoding='utf-8'))
    module = sys.modules['the_page'] = types.ModuleType('the_page')
    for c in book['cells']:
        if not c['id'].startswith('recorder-'): continue
        code = compile(''.join(c['source']), c['id'], 'exec', __future__.annotations.compiler_flag)
        exec(code, vars(module))
    yield vars(module)
    del sys.modules['the_page']


def test_the_noise_of_tokens_is_that_of_our_own_draws():
    "Others get the numbers themselves, we make them of keys"
    cases = [case for cases in RULES.values() for case in cases]
    pairs = [(keys, record['noise'][k]) for case in cases for record in case['steps']
             for k, keys in record.get('keys', {}).items()]
    assert len(pairs) > 100
    for keys, noise in pairs:
        u = (torch.tensor(keys).double() + .5) / 2**52
        ours = exponentials(u[..., None], torch.arange(6))
        theirs = -torch.tensor(noise, dtype=torch.float64).log()
        assert torch.allclose(ours, theirs, rtol=.01, atol=1e-6)

def test_a_new_case_is_as_the_kit_reads_it(page):
    case = page['steady_case']('navira-det', dict(n_remask=2, on=0.), np.random.default_rng(1))
    old = RULES['navira-det'][0]
    assert case.keys() == old.keys() and case['steps'][0].keys() == old['steps'][0].keys()
    assert page['answers']('navira-det', case) == [record['after'] for record in case['steps']]
    assert len(case['slips']) > 5

@pytest.mark.parametrize('rule', sorted({*RULES} & {*KINDS}))
def test_our_own_rule_conforms(rule, page, monkeypatch):
    monkeypatch.setitem(page, 'DRAWS', 1000) # the page compares 10,000
    ids = [case for case in RULES[rule] if not is_draws(case)]
    assert ids
    for case in ids:
        assert page['answers'](rule, case) == [record['after'] for record in case['steps']]
    draws = [case for case in RULES[rule] if is_draws(case)]
    p = [p_of_draws(c, c['probability'], page['answers'](rule, c)[0]) for c in draws]
    assert all(holm(p) > ALPHA)


def test_each_slip_shows_in_some_case(page):
    "One that no case shows would be a cause that is never named"
    seen = {k for cases in RULES.values() for case in cases for k in case['slips']}
    assert {*page['SLIPS']} <= {recorded()['slips'][int(k)] for k in seen}
