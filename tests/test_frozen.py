"""Every policy of 0.1.0 samples what it sampled then, from the same seeds, for the same cost:
frozen.json, which python tests/helpers/frozen.py wrote. A new policy need not be in it."""
import pytest
import frozen

NAMES = sorted(frozen.read())

@pytest.fixture(scope='module')
def was(): return frozen.read()

def test_no_policy_is_lost(): assert set(NAMES) <= set(frozen.registered())

@pytest.mark.parametrize('name', NAMES)
def test_a_policy_samples_what_0_1_0_sampled_for_the_same_cost(name, was):
    lines = frozen.differences(was[name], frozen.measure(name))
    # a cost is [calls, rows, logits, qualities], then those of a critic
    assert not lines, '\n'.join(lines[:20])
