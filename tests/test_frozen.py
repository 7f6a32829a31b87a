"""Every policy of 0.1.0 samples what it sampled then, from the same seeds, for the same cost:
frozen.json, which python tests/frozen.py wrote. A new policy need not be in it."""
import functools
import pytest
import frozen

NAMES = sorted(frozen.read())
now = functools.cache(frozen.measure)     # both tests of a policy look at the same runs

@pytest.fixture(scope='module')
def was(): return frozen.read()


def told(lines, what): return f'{len(lines)} {what}\n' + '\n'.join(lines[:20]) + ('\n...'
                                                                                  if lines[20:]
                                                                                  else '')


def test_no_policy_is_lost(): assert set(NAMES) <= set(frozen.registered())


@pytest.mark.parametrize('name', NAMES)
def test_a_policy_samples_what_0_1_0_sampled(name, was):
    lines = frozen.differences(was[name], now(name), cost=False)
    assert not lines, told(lines, 'differences in what is sampled')


@pytest.mark.parametrize('name', NAMES)
def test_a_policy_costs_what_0_1_0_cost(name, was):
    lines = frozen.differences(was[name], now(name), cost=True)
    assert not lines, told(lines,
                           'differences in [calls, rows, logits, qualities] computed, then those '
                           'of a critic')
