"Configurations: what they expand to, and the sentence for each mistake."
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from navira.experiments.sweep import Cell, cells, configs, Entry, read_sweep, Sweep, typed
from helpers.experiments import CONFIG, toml

BIG = 2**63
MISTAKES = [
    (dict(budget=[8]), "setting 'budget': did you mean 'budgets'?"),
    (dict(entries=[dict(policy='prisma')]), "did you mean 'prism'?"),
    (dict(entries=[dict(policy='prism', etha=.1)]), "did you mean 'eta'?"),
    (dict(entries=[dict(policy='prism', eta=2.)]), 'eta=2.0'),
    (dict(entries=[dict(policy='prism', eta='much')]), "eta='much'"),
    (dict(entries=[dict(policy='prism', change='refill')]), "did you mean 'refill-first'?"),
    (dict(entries=[dict(label='x')]), 'expected a policy'),
    (dict(entries=[dict(policy='prism', vary=5)]), 'vary=5: expected dict'),
    (dict(entries=[dict(policy='prism', eta=.1, hyper=dict(eta=.2))]), 'eta given twice'),
    (dict(entries=[]), 'at least one policy'),
    (dict(entries=[dict(policy='prism', n=0)]), 'prism: n=0'),
    (dict(entries=[dict(policy='prism', vary=dict(eta=[]))]), 'expected a list of values'),
    (dict(entries=[dict(policy='prism', vary=dict(tau=[1.]))]), "setting 'tau'"),
    (dict(entries=[dict(policy='prism', trace='yes')]), "trace='yes': expected bool"),
    (dict(entries=[dict(policy='prism'), dict(policy='prism', label='b', eta=.01)]),
     'are the same cell'),
    (dict(budgets=[1]), 'budget=1'), (dict(budgets=['many']), "budgets='many'"),
    (dict(budgets=[10**9]), 'budget=1000000000'), (dict(n=0), 'n=0'), (dict(length=0), 'length=0'),
    (dict(seeds=[0, 2 * BIG]), f'seeds={2 * BIG}'), (dict(metrics=['mauv']), "metric 'mauv'"),
    (dict(metrics='entropy'), "metrics='entropy': expected list"),
    (dict(others=[1]), 'expected a table'),
    (dict(model=5), 'model=5: expected str | None'),
    (dict(dtype='float64'), "dtype 'float64'"), (dict(role='tables'), "did you mean 'table'?"),
    (dict(device='gpu'), "device 'gpu'"), (dict(eos='onec'), "did you mean 'once'?"),
    (dict(prompt='a', task='sudoku-35'), 'expected one of them')]

@pytest.mark.parametrize('change, expected', MISTAKES, ids=[e[:30] for _, e in MISTAKES])
def test_a_mistake_is_named(change, expected, tmp_path):
    (tmp_path/'c.toml').write_text(toml(CONFIG | change))
    with pytest.raises((KeyError, ValueError)) as e: cells(read_sweep(tmp_path/'c.toml'))
    assert expected in str(e.value)

def test_a_file_that_is_none(tmp_path):
    with pytest.raises(KeyError, match="did you mean 'small'"): read_sweep('smal')
    (tmp_path/'broken.toml').write_text('n = [')
    with pytest.raises(ValueError, match='broken.toml'): read_sweep(tmp_path/'broken.toml')

some_json = st.recursive(st.none() | st.booleans() | st.integers() | st.floats()
                         | st.text(max_size=3),
                         lambda v: st.lists(v, max_size=2)
                         | st.dictionaries(st.text(max_size=3), v, max_size=2))

@settings(max_examples=60)
@given(st.sampled_from([f for f in Sweep.__dataclass_fields__ if f != 'entries']), some_json)
def test_any_setting_ends_in_a_sweep_or_in_a_sentence(name, v):
    try: s = Sweep((Entry('prism'),), **{name: v})
    except (KeyError, ValueError) as e: assert str(e)
    else: assert s == read_sweep(dict(entries=[dict(policy='prism')], **{name: v}))

@given(st.lists(st.integers(2, 40), min_size=1, max_size=3, unique=True),
       st.sets(st.integers(0, 5), min_size=1),
       st.sets(st.sampled_from([.25, .5, .75]), min_size=1))
def test_a_sweep_is_a_product(budgets, seeds, nuclei):
    s = Sweep((Entry('prism', vary=dict(top_p=list(nuclei))), Entry('backbone', seeds=(7,))),
              budgets=budgets, seeds=tuple(seeds))
    made = cells(s)
    assert len(made) == len(budgets) * (len(seeds) * len(nuclei) + 1) == len({c.key for c in made})
    assert [c.budget for c in made] == sorted(c.budget for c in made)

def test_a_key_is_of_what_decides_tokens():
    c = Cell('prism', 8, dict(eta=.01))
    # .01 is the default
    assert c.key == Cell('prism', 8, n=3, label='other', trace=True, keep=1).key
    others = [replace(c, budget=9), replace(c, seed=1), replace(c, seed=2**53 + 1),
              replace(c, seed=2**53),
              replace(c, change='refill-first'), replace(c, hyper=dict(eta=.02)),
              replace(c, policy='backbone', hyper={})]
    assert len({c.key, *(o.key for o in others)}) == 8

def test_small_curves_and_ablations_share_a_store():
    keys = [{c.key for c in cells(read_sweep(name))} for name in ('small', 'curves', 'ablations')]
    assert keys[0] & keys[1] and set(configs()) >= {'small', 'curves', 'ablations', 'sudoku',
                                                    'infill', 'paper'}

def test_a_label_is_the_policy_as_one_types_it():
    assert typed('navira', dict(tau=.2, eta=.1, on=None)) == 'navira:tau=.2+on=None'
    assert Entry('prism', change='refill-first').label == 'prism, refill-first'
