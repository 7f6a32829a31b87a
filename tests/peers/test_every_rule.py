"""Every policy, over random settings and prompts: what it keeps, what its door refuses."""
import copy, math

import pytest
import torch
from hypothesis import given, settings, strategies as hs

import frozen
from navira.core import Policy
from navira.diffusion import n_committed
from navira.sampler.registry import parameters, policies, policy
from navira.sampler.renoise import renoised
from navira.sampling import sample
from helpers.core import NAMES as PAPER
from helpers.peers import KINDS, prompts

NAMES = frozen.registered()
SHADOWS = {'wino', 'cover'}         # the net does not count them

EXACT = {*PAPER} - {'mdlm'}       # of N free positions ceil(N (i + 1) / T) after step i
own = frozen.own

names = hs.sampled_from(NAMES)

@settings(max_examples=120)
@given(names, hs.integers(1, 30), hs.integers(0, 2**40), hs.sampled_from([0., .3, .8]), hs.data())
def test_prompt_budget_trace_and_rows_are_kept(name, budget, seed, share, data):
    net, M = frozen.net, frozen.M
    rule = policy(name, **own(name) | data.draw(hs.sampled_from(frozen.variants(name))))
    model = renoised(net) if 'uniform noise' in rule.step.needs else net
    x = prompts(frozen.L, M, seed, share=share)
    net.reset()
    try: out = sample(model, rule, budget, 3, seed, prompt=x, trace=True)
    except ValueError as e:                    # too small a budget, blocks that do not fit
        assert 'budget' in str(e) or 'block_length' in str(e)
        return
    passes, t, fixed = sum(net.rows), out.trace, x != M
    assert not (out.tokens == M).any() and (t.x[:, fixed] == x[fixed]).all()
    if not own(name) and name not in SHADOWS: assert out.n_forward.sum() == passes
    free = (~fixed).sum(1)
    tests = free.double().log2().ceil() if name == 'punt' else 0   # passes of a step, beside one
    if rule.matched: assert out.n_forward.max() <= budget
    # these take back what they wrote
    elif name == 'entropy-bound': assert (out.n_forward <= budget).all()
    elif name != 'block-refinement': assert (out.n_forward <= free * (1 + tests)).all()
    if name in EXACT:
        for i in range(t.T): assert torch.equal(((t.x[i + 1] != M) & ~fixed).sum(1),
                                                n_committed(free, i, t.T))
    changed = t.x[1:] != t.x[:-1]
    assert not (changed & ~t.remasked & ~t.unmasked).any()  # nothing changes that no flag explains
    assert not (t.remasked | t.unmasked)[:, fixed].any()
    row = seed % 3
    alone = sample(model, rule, budget, range(row, row + 1), seed, prompt=x[row])
    assert torch.equal(alone.tokens[0], out.tokens[row])
    assert alone.n_forward[0] == out.n_forward[row]

@pytest.mark.parametrize('name', KINDS)
def test_a_rule_says_whether_it_reads_qualities(name):
    "One that does is refused by a model without a head, before any pass"
    headless = copy.copy(frozen.net)
    headless.has_quality, headless.quality_of = False, None
    for hyper in frozen.variants(name):
        rule = policy(name, **own(name), **hyper)
        run = lambda: sample(headless, rule, 24, 1, length=12)
        if not rule.reads_quality: run()
        else:
            with pytest.raises(ValueError, match='quality head'): run()

# ---- Doors

# above 1 without being whole
MORE_THAN_ONE = {'temperature', 'loop_temperature', 'choice_temperature', 'alg_temp', 'noise',
                 'tau', 'tau_max', 'gamma', 'kl', 'A', 'penalty', 'epsilon', 'perturbation',
                 'alpha', 'lam', 'hot', 'cold', ('entropy-bound', 'sure'), ('p2', 'eta'),
                 ('navira-sigmoid', 'k'),
                 ('navira-sigmoid-changed', 'k'), ('navira-onepass-sigmoid', 'k')}

def numbers_of(name):
    return [k for k, p in parameters(policies()[name]).items()
            if isinstance(p.default, (int, float)) and not isinstance(p.default, bool)
            or p.default is None and k not in ('tau', 'n_remask')]

def refuses(name, k, v):
    try: policy(name, **own(name), **{k: v})
    except ValueError as e: return k in str(e)
    return False

def test_a_number_out_of_range_is_named_by_every_policy():
    cases = [(name, k, v) for name in NAMES for k in numbers_of(name) for v in (math.nan, -1, 1.5)]
    fits = {case for case in cases if case[2] == 1.5 and MORE_THAN_ONE & {case[1], case[:2]}}
    assert not [case for case in cases if refuses(*case) == (case in fits)]

ODD = [0, 1, 2, 7, .25, .999, 1e-9, 1e9, 2**40, math.inf, True, None, 'x', '', (), [1],
       torch.tensor(.5)]

@settings(max_examples=120)
@given(names, hs.data())
def test_whatever_comes_through_the_door_ends_in_a_text_or_in_a_sentence(name, data):
    k = data.draw(hs.sampled_from(sorted(parameters(policies()[name]))))
    v = data.draw(hs.sampled_from(ODD))
    try: rule = policy(name, **own(name) | {k: v})
    except (ValueError, KeyError, FileNotFoundError) as e:
        assert k in str(e)
        return
    assert isinstance(rule, Policy)
    try: out = sample(frozen.net, rule, 8, 2)
    except ValueError as e: assert str(e)
    else: assert not (out.tokens == frozen.M).any()
