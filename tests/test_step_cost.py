"""What a step launches and how often it waits: exact counts, the same on every machine, so a test
can hold them. Times are in nbs/studies/speed.ipynb."""
import sys
from pathlib import Path

import pytest

from navira.sampler.registry import policies, policy

sys.path.insert(0, str(Path(__file__).parents[1]/'benchmarks'))
from step_cost import counts, logits_are_enough  # noqa: E402

NEAR = ('backbone', 'prism', 'prism-stochastic', 'navira-det', 'navira', 'navira-quadratic',
        'navira-sigmoid', 'navira-piecewise', 'mdlm', 'llada-random', 'llada-low-confidence',
        'dream-origin', 'dream-maskgit-plus', 'dream-topk-margin', 'dream-entropy', 'remdm-cap',
        'remdm-rescale', 'remdm-switch', 'remdm-loop', 'remdm-conf')
OTHERS = 'entropy-bound', 'ddim', 'remdm-uniform'       # for models of uniform noise

@pytest.mark.parametrize('name', NEAR)
def test_a_step_launches_little_and_waits_seldom(name):
    launches, waits = counts(name)
    assert launches <= 92 and round(waits, 1) <= 3

def test_no_other_policy_that_logits_are_enough_for_launches_much():
    for name in policies():
        if name in NEAR + OTHERS or not logits_are_enough(name): continue
        (launches, waits), n = counts(name, length=64), policy(name).passes   # info-gain has eight
        assert launches <= 190 * n and round(waits, 1) <= 6 * n, name

def test_more_texts_cost_no_more_launches():
    for name in ('navira', 'llada-low-confidence', 'remdm-cap'):
        one, many = counts(name, 1, 64, 16), counts(name, 8, 64, 16)
        assert many[0] <= one[0] + 12 and many[1] <= one[1] + 1, name
