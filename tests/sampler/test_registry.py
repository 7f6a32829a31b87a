"""Every policy in the registry, whoever wrote it: it keeps the promises, and says what it is."""
import subprocess
import sys
from dataclasses import replace

import pytest

import frozen
from navira.core import Flip, Policy, random_choice, random_order, TopK
from navira.peers.blocks import Within
from navira.sampler.registry import (
    about, CARD, choices, meanings, parameters, policies, policy)

NAMES = sorted(policies())
OLD = frozen.read()

def test_card():
    "Policies of 0.1.0 have a full one; a new one says what it likes, in the same words"
    for name in NAMES:
        known = parameters(policies()[name])
        assert tuple(about(name)) == CARD and (all(about(name).values()) or name not in OLD), name
        assert known.keys() <= meanings(name).keys(), name
        # a comparison can give all the same nucleus
        if name in OLD or 'top_p' in known: assert policy(name, top_p=.5).draw.top_p == .5, name

def test_the_registry_fills_itself_and_keeps_what_was_there():
    code = """from navira.sampler.registry import policy, policies, register
mine = register('maskgit')(lambda: policy('prism'))
print(len(policies()), policy('llada-low-confidence').revises, policies()['maskgit'] is mine)"""
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == [str(len(NAMES)), 'False', 'True']

@pytest.mark.parametrize('unmask, remask', [
    (TopK(random_order, 1, .5), TopK(random_choice, 1, .5)), (Flip(.1), Flip(.1)),
    (Within(None, TopK(random_order, 1, lambda st: st.u)), TopK(random_choice, 1, .5))])
def test_two_rules_do_not_draw_the_same_numbers(unmask, remask):
    Policy(unmask, replace(remask, purpose='other'))
    if isinstance(remask, TopK): Policy(unmask, replace(remask, tau=None))     # draws nothing
    for both in ((unmask, remask), [Within(unmask, remask)], [Within(None, (unmask, [remask]))]):
        with pytest.raises(ValueError, match='expected one of its own for each'): Policy(*both)

def test_every_text_has_choices():
    "that `policy` accepts, all of them, and nothing else"
    n = 0
    for name, f in policies().items():
        for k, p in parameters(f).items():
            if not isinstance(p.default, str) or k == 'critic': continue      # which is a file
            offered, n = choices(p), n + 1
            assert p.default in offered and len(offered) > 1
            for v in offered: policy(name, **{k: v})
            with pytest.raises(KeyError, match=f"did you mean '{offered[-1]}'"):
                policy(name, **{k: offered[-1][:-1]})
    assert n > 12

