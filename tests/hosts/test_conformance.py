"""The conformance kit: our own rules pass, planted errors are found and named, and the cases are
what the page makes."""
import __future__
import functools, json, sys, types
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

import navira.hosts.conformance as kit
from navira.base.stats import holm
from navira.diffusion import exponentials
from navira.hosts.conformance import ALPHA, causes, conform, p_value, recorded, report
from navira.registry import policies

sys.path.insert(0, str(Path(__file__).parent))
from planted import llada, PLANTED, samplers

FILE = files('navira')/'assets'/'conformance.json'
RULES = recorded()['rules']


def is_draws(case): return 'probability' in case

@pytest.fixture(scope='module')
def page(root):
    "What the page of the kit makes its cases with"
    book = json.loads((root/'nbs'/'hosts'/'conformance.ipynb').read_text(encoding='utf-8'))
    module = sys.modules['the_page'] = types.ModuleType('the_page')
    names = vars(module)
    names.update({k: v for k, v in vars(kit).items() if not k.startswith('__')})
    for c in book['cells']:
        if c['id'] != 'conf-hidden' and not c['id'].startswith('recorder-'): continue
        code = compile(''.join(c['source']), c['id'], 'exec', __future__.annotations.compiler_flag)
        exec(code, names)
    yield names
    del sys.modules['the_page']


# ---- The file

def test_it_is_one_file_of_two_megabytes_with_a_version():
    text = FILE.read_bytes()
    assert len(text) <= 2e6 and json.loads(text)['version'] == 1

def test_every_policy_has_cases_or_a_reason():
    left_out = {*policies()} - {*RULES} - {'second-thoughts'}
    assert {k for k in left_out if not k.endswith('-changed')} == {'best-of', 'wino'}

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

@pytest.mark.parametrize('rule', ['llada-low-confidence', 'navira-det', 'remdm-conf'])
def test_the_cases_are_made_again(rule, page):
    "Ids and logits to the digit; what has passed through a logarithm, nearly"
    again = json.loads(json.dumps(page['cases_of'](rule)))
    assert len(again) == len(RULES[rule])
    for new, old in zip(again, RULES[rule]):
        for k in ('hyper', 'needs', 'n', 'prompt', 'texts', 'mask_id', 'after'):
            assert new.get(k) == old.get(k), k
        mine = {page['CAUSES'][int(k)]: v for k, v in new['slips'].items()}
        theirs = {recorded()['slips'][int(k)]: v for k, v in old['slips'].items()}
        if not is_draws(old): assert mine == theirs
        else:
            assert np.allclose(new['probability'], old['probability'], atol=1e-5)
            assert mine.keys() == theirs.keys()
            assert all(np.allclose(mine[k], theirs[k], atol=1e-5) for k in mine)
        for a, b in zip(new['steps'], old['steps']):
            assert {k: a.get(k) for k in ('step', 'ids', 'after', 'keys')} == {
                k: b.get(k) for k in ('step', 'ids', 'after', 'keys')}
            assert a['noise'].keys() == b['noise'].keys()
            assert all(np.allclose(a['noise'][k], v, atol=2e-6) for k, v in b['noise'].items())

# ---- Our own rules

@pytest.mark.parametrize('rule', sorted(RULES))
def test_our_own_rule_conforms(rule, page):
    ids = [case for case in RULES[rule] if not is_draws(case)]
    assert ids
    for case in ids:
        assert [*page['answers'](rule, case)] == [record['after'] for record in case['steps']]
    draws = [case for case in RULES[rule] if is_draws(case)]
    p = [p_value(c, c['probability'], next(page['answers'](rule, c))) for c in draws]
    assert all(holm(p) > ALPHA)

def test_each_slip_shows_in_some_case(page):
    "One that no case shows would be a cause that is never named"
    seen = {k for cases in RULES.values() for case in cases for k in case['slips']}
    assert {*page['SLIPS']} <= {recorded()['slips'][int(k)] for k in seen}

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
    text = report(outcomes)
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
    text = report(conform({'llada-low-confidence': step}))
    assert 'likely cause: none that is known' in text
    assert 'step 0 of 5, row 0, position' in text

def test_a_text_that_the_rule_does_not_read_is_shown():
    "A sampler that remasks other tokens asks for logits that are not recorded"
    def step(ids, quality, logits, prompt, mask_id, step, steps, noise, model, n_remask, on):
        return samplers['navira-det'](ids, logits, -quality, prompt, mask_id, step, steps, noise,
                                      model, on=on, n_remask=n_remask)
    text = ' '.join(report(conform({'navira-det': step})).split())
    assert 'asked for' in text and 'the sign of the quality is reversed' in text

BAD = {
    'floats': (lambda ids: ids * 1., 'returned float64 of shape [2, 8]; expected whole numbers'),
    'flat': (lambda ids: ids[0], 'returned int64 of shape [8]; expected whole numbers'),
    'nothing': (lambda ids: None, 'returned object of shape []; expected whole numbers'),
    'raised': (lambda ids: ids[:, 9], 'IndexError: index 9 is out of bounds')}

@pytest.mark.parametrize('kind', BAD)
def test_what_is_no_answer_is_named_and_the_others_go_on(kind):
    f, sentence = BAD[kind]
    outcomes = conform({'fast-dllm': f, 'mdlm': samplers['mdlm']})
    bad, *others = [out for out in outcomes if not out.lacks]
    assert bad.rule == 'fast-dllm' and bad.departs and sentence in bad.error
    assert len(others) > 2 and not [out for out in others if out.departs]
    assert f'case 1 (defaults), step 0 of 5, {bad.error[:20]}' in report([bad])

def test_an_exception_in_a_later_step_is_reported_there():
    def late(ids, logits, prompt, mask_id, step, steps, noise):
        if step == 3: raise RuntimeError('no third step')
        return llada(ids, logits, prompt, mask_id, step, steps, noise)
    out = next(out for out in conform({'llada-low-confidence': late}) if not out.lacks)
    assert 'step 3 of 5, RuntimeError: no third step' in report([out])

@pytest.mark.parametrize('rule, f, sentence', [
    ('llada-low-confidenc', llada, "did you mean 'llada-low-confidence'"),
    ('mdlm', 'step', "mdlm: got 'step'; expected a function"),
    ('mdlm', lambda logit: 0, "argument 'logit': did you mean 'logits'")])
def test_a_sampler_that_is_none_is_named(rule, f, sentence):
    with pytest.raises((KeyError, ValueError)) as e: conform({rule: f})
    assert sentence in str(e.value)
