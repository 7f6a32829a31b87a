"""What the paper says, what we measured, and a verdict on each."""
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import navira.experiments.claims as fg_claims
import navira.experiments.readings as fg_readings
from navira.experiments.old_results import mean, Missing, number, read
from navira.experiments.samples import tokens
from navira.experiments.readings import at_passes_run
from navira.experiments.claims import (
    against, Claim, CLAIMS, claims, findings, no_best_temperature, paragraph, VERDICTS)
from helpers.figures import GRID, SLOPES, made_up, toy  # noqa: F401

# --- claims -----------------------------------------------------------------------------------------------------------

CLAIM = Claim('A is lower.', '9.9', 'a ratio', None, -1, scale=np.exp)

def with_runs(r, share):
    "Policies of two passes a step run this share of what they are charged"
    return replace(
        r,
        points=[
            replace(p, rows=p.rows.assign(n_forward=float(p.budget) if p.steps == p.budget else share * p.budget))
            for p in r.points
        ],
    )

@pytest.mark.parametrize('centre, said', [(-.5, 'holds'), (.5, 'does not hold'), (0., 'cannot tell')])
def test_a_verdict_is_computed(centre, said):
    d = mean(np.random.default_rng(0).standard_normal(100) * .5) ; d = d - d[0] + centre
    f = fg_claims.judged(replace(CLAIM, measure=lambda r: {'here': d}), None)
    assert f.verdict == said and f.number.value == pytest.approx(np.exp(centre))
    assert fg_claims.judged(replace(CLAIM, measure=lambda r: {'here': d}, side=1), None).verdict == {
        'holds': 'does not hold',
        'does not hold': 'holds',
    }.get(said, said)
    assert said.capitalize() in paragraph(f) or said[0].upper() + said[1:] in paragraph(f)

def test_too_few_texts_cannot_tell():
    assert (
        fg_claims.judged(replace(CLAIM, measure=lambda r: {'here': mean([-1.0, -1.1, -0.9])}), None).verdict
        == 'cannot tell'
    )

def test_what_is_missing_is_not_tested(toy):
    def measure(r): raise Missing('this and that')
    f = fg_claims.judged(replace(CLAIM, measure=measure), toy)
    assert (f.verdict, f.lack) == ('not tested', 'this and that') and 'this and that' in paragraph(f)

def test_claims_of_the_toy(toy):
    by = {f.claim.text: f for f in findings(toy)}
    assert by['NAVIRA-det achieves lower perplexity than PRISM.'].verdict == (
        'holds' if SLOPES['navira-det'] / 2**0.5 > SLOPES['prism'] else 'does not hold'
    )
    assert by['Decoupled remasking corrects better: NAVIRA-det has a better trade-off than PRISM.'].verdict == 'holds'
    assert by['Margin-based remasking collapses substantially faster than PRISM.'].verdict == 'not tested'
    assert all(f.verdict in (*VERDICTS.values(), 'not tested') for f in by.values())
    assert len(claims(toy).rows) == len(CLAIMS) and 'p{' in claims(toy).latex().split(chr(10))[2]

def test_no_best_temperature_by_chance(tmp_path):
    "Temperatures that do not differ: the one that looks best is not measured on the texts that it was chosen on"
    config = dict(GRID, n=32, budgets=[64], entries=[dict(policy='navira', tau=t, eta=.08) for t in (.05, .2, .5, 1.)])
    said, rng = [], np.random.default_rng(0)
    for i in range(40):
        r = read(made_up(tmp_path / str(i), config, rng=rng))
        said.append(number(np.mean(list(no_best_temperature(r).values()), 0)).side())
    assert said.count(1) <= 6 and said.count(-1) <= 6           # 2.5 % each and a little more, of 40

def test_at_equal_passes_run_one_is_compared_where_it_ran(tmp_path):
    """Perplexities on a straight line in the logarithm of passes: halfway between two budgets, in that logarithm, is
    halfway between their heights"""
    r = read(
        made_up(
            tmp_path / 's',
            dict(GRID, budgets=[64, 128], entries=[dict(policy=p, eta=0.08) for p in ('prism', 'navira-det')]),
        )
    )
    y = {(n, F): r.point(n, F).log_perplexity for n in ('PRISM', 'NAVIRA-det') for F in (64, 128)}
    at = at_passes_run('PRISM', 'NAVIRA-det')(with_runs(r, .5**.5))
    assert len(at) == 1  # 64 charged run 45, fewer than PRISM ever does
    np.testing.assert_allclose(
        next(iter(at.values())), y['NAVIRA-det', 128] - (y['PRISM', 64] + y['PRISM', 128]) / 2, atol=1e-9
    )
    same = at_passes_run('PRISM', 'NAVIRA-det')(with_runs(r, 1.))
    np.testing.assert_allclose(
        np.mean(list(same.values()), 0),
        np.mean(list(against('PRISM', 'NAVIRA-det', 'log_perplexity')(r).values()), 0),
        atol=1e-9,
    )
    last = fg_readings.passes(with_runs(r, .5**.5)).rows
    assert [row[:3] for row in last] == [(64, '64', '45'), (128, '128', '91'), ('mean', None, None)]
    assert last[0][4] is None
    assert last[1][4] == last[2][4]
    with pytest.raises(Missing, match='equal numbers of passes run'):
        at_passes_run('PRISM', 'NAVIRA-det')(with_runs(r, 0.3))

def test_claims_say_how_they_are_measured(toy):
    "In the table of a report, and on the page of all numbers"
    t = claims(toy)
    assert t.head.index('measured as')
    assert [row[t.head.index('measured as')] for row in t.rows] == [c.how for c in CLAIMS]
    for page in ('nbs/numbers.ipynb',):
        text = (Path(__file__).resolve().parents[2] / page).read_text(encoding='utf-8')
        assert 'measured as' in text and CLAIMS[0].how in text and 'does not hold' in text, page

def test_rare_tokens_are_those_beyond_the_most_frequent_ones_of_the_backbone(toy, monkeypatch):
    monkeypatch.setattr(fg_claims, 'COMMON', 3)
    texts = {n: {F: tokens(toy.store, toy.point(n, F).rows.key.iloc[0]) for F in toy.budgets(n)}
             for n in ('MDLM backbone', 'PRISM')}
    budgets = toy.budgets('MDLM backbone', 'PRISM')
    counts = torch.cat([texts['MDLM backbone'][F].flatten() for F in budgets]).bincount()
    common = counts.argsort(descending=True)[:3].tolist()
    share = lambda n, F: np.mean([[t not in common for t in row] for row in texts[n][F].tolist()])
    found = fg_claims.rare_tokens('MDLM backbone', 'PRISM')(toy)
    for F in budgets: assert found[f'{F} forwards'][0] == pytest.approx(share('PRISM', F) - share('MDLM backbone', F))
