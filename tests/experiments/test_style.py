"""Colours, markers, axes and bars: the same for every figure."""
import numpy as np
import pytest

import navira.experiments.style as fg_style
from navira.experiments.old_results import method_of, METHODS
from navira.experiments.style import look

def test_looks_are_told_apart_in_grey():
    "By marker and line: every method of the table, and any nine names beside each other"
    assert (
        len({m.look[1:] for m in METHODS.values()})
        == len(METHODS)
        == len({m.look[:2] for m in METHODS.values()})
    )
    rng = np.random.default_rng(0)
    for _ in range(50):
        names = [*rng.choice(list(METHODS), 4, replace=False), *(f'p{k}' for k in rng.integers(0, 1000, 5))]
        looks = fg_style.looks(list(dict.fromkeys(names)))
        assert len({(v['marker'], v['ls']) for v in looks.values()}) == len(looks)
        assert all(looks[n] == look(n) for n in looks if n in METHODS)

@pytest.mark.parametrize('name', METHODS)
def test_a_legend_has_what_one_types(name):
    "`policy:setting=value+...`, which is the same policy again, and Python takes its parts"
    m = METHODS[name]
    policy, _, rest = m.typed.partition(':')
    hyper = {
        k: v == 'True' if v in ('True', 'False') else float(v) if v[0] in '.0123456789' else v
        for k, v in (s.split('=') for s in rest.split('+') if s)
    }
    assert (policy, hyper) == (m.policy, m.hyper)
    assert look(name)['label'] == m.typed
    assert method_of(m.typed) == name
