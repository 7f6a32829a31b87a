"""What do two rules remask in one and the same state, and do rare words suffer?"""
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as hs

import navira
from navira.core import TopK, random_choice
from navira.evaluation.same_state import by_frequency, deciles, picks, same_state, states
from helpers.metrics import joint, kinds, run  # noqa: F401

@pytest.mark.parametrize('name', ['navira-det', 'navira'])
def test_rules_shown_the_states_of_a_run_pick_what_they_picked_in_it(joint, name):
    "State, step, noise and count are all as they were."
    t = run(joint, name)
    rule = {name: navira.policy(name, **kinds[name])}
    again = torch.stack([picks(joint, st, rule, batch_size=7)[name] for st in states(t, seed=3)])
    assert torch.equal(again, t.remasked) and t.remasked.any()
    later = run(joint, name, n=5, first=15)
    again = torch.stack([picks(joint, st, rule)[name] for st in states(later, seed=3, first=15)])
    assert torch.equal(again, later.remasked) and torch.equal(later.remasked, t.remasked[:, 15:])

def test_same_state(joint):
    t = run(joint, 'prism')
    rules = {
        'det': navira.policy('navira-det'),
        'prism': navira.policy('prism'),
        'cold': navira.policy('navira', tau=1e-9),
        'hot': navira.policy('navira', tau=1e9),
    }
    out = same_state(joint, states(t, seed=3), rules, n_remask=2)
    assert len(out) == 6 and out['det', 'prism'].jaccard.shape == (t.T, t.n)
    for pair in ('det', 'prism'), ('det', 'cold'):
        j = out[pair].jaccard[out[pair].either]
        assert (j == 1).all() and len(j)
    assert out['det', 'hot'].mean('either')['jaccard'].value < .9

def test_same_state_says_what_is_wrong(joint):
    t = run(joint, 'prism'); det = navira.policy('navira-det')
    for rules, kw, what in [
        ({'a': det}, {}, 'two or more'),
        ({'a': det, 'b': 'prism'}, {}, "rule 'b' is 'prism'"),
        ({'a': det, 'c': navira.policy('remdm-cap')}, dict(n_remask=1), "rule 'c' remasks by"),
        ({'a': det, 'c': navira.policy('remdm-conf')}, {}, "rule 'c' has no score"),
    ]:
        with pytest.raises(ValueError, match=what):
            same_state(joint, states(t), rules, **kw)
    with pytest.raises(ValueError, match='no states'): same_state(joint, [], {'a': det, 'b': det})

def test_a_score_that_is_partly_nan_is_an_error(joint):
    "A damaged head ranks the other tokens, and nobody would notice"
    def damaged(st, p, where): return torch.where(torch.arange(st.x.shape[1]) == 0, math.nan, 1.).expand(st.x.shape)
    rule = {'a': replace(navira.policy('navira-det'), remask=TopK(damaged, 1))}
    st = list(states(run(joint, 'prism'), seed=3))[-1]
    assert st.committed[:, 0].any() and st.committed[:, 1:].any()
    with pytest.raises(ValueError, match="rule 'a' scores .* with NaN"): picks(joint, st, rule)

@given(hs.lists(hs.integers(0, 50), min_size=1, max_size=60).filter(any), hs.integers(1, 12))
def test_deciles(counts, groups):
    d, c = deciles(counts, groups), torch.tensor(counts)
    assert d.min() >= 0 and d.max() < groups and len(d) == len(c)
    order = c.argsort(stable=True)
    assert (d[order].diff() >= 0).all()      # the rarer, the lower
    share = torch.zeros(groups).index_add(0, d, c.float()) / c.sum()
    assert (share <= 1/groups + c.max() / c.sum() + 1e-6).all()      # no group is over its share by more than one token

def test_by_frequency_counts_every_pick():
    from navira.models.layers import Config
    from navira.models.dit import MaskedLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        m = MaskedLM(Config(vocab_size=30, model_length=16, hidden_dim=16, cond_dim=8, n_blocks=1, n_heads=2,
                            quality_blocks=1)).eval()
    rows = torch.randint(0, 29, (12, 16), generator=torch.Generator().manual_seed(0))
    counts = rows.flatten().bincount(minlength=30)
    rules = {
        'det': navira.policy('navira-det'),
        'random': replace(navira.policy('navira-det'), remask=TopK(random_choice, 1)),
        'hot': navira.policy('navira', tau=5.0),
    }
    for t in 0., .5:
        out = by_frequency(m, rules, rows, counts, share=.25, t=t, batch_size=5)
        for groups in out.values():
            shown, hit = (sum(getattr(g, k) for g in groups) for k in ('whole', 'part'))
            assert len(groups) == 10
            assert torch.equal(hit, (0.25 * shown - 1e-9).ceil())
            assert (shown == 16).all() == (t == 0)
    for kw, what in [
        (dict(share=0), 'share=0'),
        (dict(t=1), 't=1'),
        (dict(counts=counts[:5]), 'counts of 5 tokens'),
        (dict(counts=counts * 0), 'not all 0'),
        (dict(rows=rows + 1), 'none of them the mask 29'),
    ]:
        with pytest.raises(ValueError, match=what):
            by_frequency(m, rules, **{**dict(rows=rows, counts=counts), **kw})
