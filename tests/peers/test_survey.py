"""The table of every policy."""
import pytest
import torch

import frozen
from navira.core import step
from navira.peers.survey import coupling
from navira.peers.uniform import Bridge
from navira.sampler.registry import policy
from navira.sampler.renoise import renoised
from navira.sampler.budgets import n_steps
from helpers.peers import started

def seen(rule, F=16):
    "Does a run of it replace tokens that stand? Does it mask any, for the pass that predicts?"
    x = torch.full((frozen.ROWS, frozen.L), frozen.M)
    st, found = started(x, frozen.M, n_steps(rule, F, (x == frozen.M).sum(1)), 3), set()
    def watch(_, before, p, clean, after):
        if (before.committed & clean.committed & (clean.x != before.x)).any(): found.add('replaced')
        if (clean.committed & (after.x != clean.x)).any(): found.add('replaced')
        if (before.committed & clean.masked).any(): found.add('masked')
    net = renoised(frozen.net) if isinstance(rule.step, Bridge) else frozen.net
    while st.i < st.n: st = step(rule, st, net, watch)
    return found

LABELS = {'nothing remasked': set(), 'coupled': {'masked'}, 'decoupled': {'masked'},
          'coupled, then decoupled': {'masked'}, 'replaced in place': {'replaced'},
          'coupled, what stays is replaced in place': {'masked', 'replaced'}}
strong = {'core': dict(every=1, protect=0, threshold=0.),
          'gidd-correct': dict(loop_steps=6, temperature=1.)}

# best-of shows one draft, then another
@pytest.mark.parametrize('name', sorted(set(frozen.registered()) - {'best-of'}))
def test_the_label_is_what_a_run_does(name):
    critic = frozen.own(name)
    rule = policy(name, **critic)
    label, found = LABELS[coupling(rule)], set()
    assert rule.revises == bool(label)
    for hyper in (strong.get(name, {}), *frozen.variants(name)):
        found |= seen(policy(name, **critic, **hyper))
        assert found <= label
        if found == label: break
    if name in frozen.read(): assert found == label        # one of your own may be idle
