"Configurations: what they expand to, and the sentence for each mistake."
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from navira.experiments.sweep import as_typed, Cell, cells, read_sweep, Sweep

BIG = 2**63
def one(**settings): return dict(entries=[dict(policy='prism') | settings])

MISTAKES = [
    (dict(budget=[8]), "setting 'budget': did you mean 'budgets'?"),
    (one(etha=.1), "did you mean 'eta'?"), (one(eta=2.), 'eta=2.0'),
    (one(change='refill'), "did you mean 'refill-first'?"),
    (dict(entries=[dict(label='x')]), 'expected a policy'),
    (one(vary=[1]), 'vary=[1]: expected a table'),
    (one(eta=.1, vary=dict(eta=[.2])), 'given once'),
    (dict(entries=[]), 'at least one'),
    (one(vary=dict(eta=[])), 'expected a list of values'),
    (one(vary=dict(tau=[1.])), "setting 'tau'"),
    (dict(entries=[dict(policy='prism'), dict(policy='prism', label='b', eta=.01)]),
     'are the same cell'),
    (one(policy='navira', budgets=[1]), 'budget=1'), (dict(budgets=['many']), "budget='many'"),
    (dict(budgets=[10**9]), 'budget=1000000000'), (dict(n=0), 'n=0'), (dict(length=0), 'length=0'),
    (dict(seeds=[0, 2 * BIG]), f'seeds={2 * BIG}'), (dict(metrics=['mauv']), "metric 'mauv'"),
    (dict(metrics='entropy'), "metrics='entropy': expected list"),
    (dict(others=[1]), 'expected a table'), (dict(role='tables'), "did you mean 'table'?"),
    (dict(device='gpu'), "device 'gpu'"),
    (dict(prompt='a', task='sudoku-35'), 'expected one of them')]

@pytest.mark.parametrize('change, expected', MISTAKES, ids=[e[:30] for _, e in MISTAKES])
def test_a_mistake_is_named(change, expected):
    with pytest.raises((KeyError, ValueError)) as e:
        cells(read_sweep(one() | dict(budgets=[4, 8]) | change))
    assert expected in str(e.value)

some_json = st.recursive(st.none() | st.booleans() | st.integers() | st.floats()
                         | st.text(max_size=3),
                         lambda v: st.lists(v, max_size=2)
                         | st.dictionaries(st.text(max_size=3), v, max_size=2))

@settings(max_examples=60)
@given(st.sampled_from([f for f in Sweep.__dataclass_fields__ if f != 'entries']), some_json)
def test_any_setting_ends_in_a_sweep_or_in_a_sentence(name, v):
    entries = [dict(policy='prism')]
    try: s = Sweep(entries, **{name: v})
    except (KeyError, ValueError) as e: assert str(e)
    else: assert s == read_sweep(dict(entries=entries, **{name: v}))


def test_a_key_is_of_what_decides_tokens():
    c = Cell('prism', 8, dict(eta=.01))     # .01 is the default
    assert c.key == Cell('prism', 8, n=3, label='other', trace=True, keep=1).key
    others = [replace(c, budget=9), replace(c, seed=1), replace(c, seed=2**53 + 1),
              replace(c, seed=2**53), replace(c, change='refill-first'),
              replace(c, hyper=dict(eta=.02)), replace(c, policy='backbone', hyper={})]
    assert len({c.key, *(o.key for o in others)}) == 8

def test_a_label_is_the_policy_as_one_types_it():
    assert as_typed('navira', dict(tau=.2, eta=.1, on=None)) == 'navira:tau=.2+on=None'
    made = cells(read_sweep(one(change='refill-first') | dict(budgets=[8])))
    assert made[0].label == 'prism, refill-first'
