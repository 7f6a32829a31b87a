"""Figures 2 to 4, Tables 1 and 2, and the plane of perplexity and entropy."""
from dataclasses import replace

import pytest

from navira.evaluation.landmarks import landmarks
from navira.experiments.old_results import Missing, Number, read
from navira.experiments.style import NAMED
from navira.experiments.figures import GREY, landmarks_of, plane, table1, table2
from helpers.figures import GRID, made_up, many, toy  # noqa: F401

def test_traces_of_different_steps_are_not_compared(tmp_path):
    entries = [dict(policy=p, eta=.08, trace=True) for p in ('prism', 'navira-det', 'navira')]
    r = read(made_up(tmp_path / 's', dict(GRID, entries=entries)))
    with pytest.raises(Missing, match='equal numbers of steps'): table2(r)
    r = read(
        made_up(
            tmp_path / 't',
            dict(GRID, entries=[dict(e, budgets=[64 if e['policy'] == 'prism' else 128]) for e in entries]),
        )
    )
    assert all(row[4] == Number(1, 1, 1) for row in table2(r).rows)      # all remask the same two

def test_landmarks_hold_for_their_own_kind_only(toy):
    assert landmarks_of(toy) == landmarks()
    for other in (
        replace(toy, reference='gpt2'),
        replace(toy, record=toy.record | dict(length=64)),
        replace(toy, record=toy.record | dict(config=toy.record['config'] | dict(model='x'))),
    ):
        assert landmarks_of(other) == {}

def test_a_picture_names_nine_policies_and_the_rest_is_grey(many):
    "The plane: plots take most of it, the legend little"
    fig = plane(many)
    fig.draw_without_rendering()
    named = [t.get_text() for t in fig.legends[0].get_texts()]
    assert len(named) == NAMED + 1
    assert named[-1] == '31 others'
    assert {'prism', 'navira-det', 'navira:tau=.2'} <= set(named)
    assert (
        sum(ax.get_window_extent().height for ax in fig.axes) / 2
        > 0.4 * fig.bbox.height
        > 1.5 * sum(t.get_window_extent().height for t in fig.legends[0].get_texts()) / 3
    )
    colours = [c[0].get_color() for c in fig.axes[0].containers]
    assert sum(c == GREY['color'] for c in colours) == 31 and len({*colours} - {GREY['color'], 'k'}) >= 8

@pytest.mark.parametrize(
    'entries, said',
    [
        (
            [dict(policy='remdm-cap', budgets=[64]), dict(policy='remdm-loop', eta=0.02, budgets=[128])],
            "ReMDM-cap with eta = 0.04, ReMDM-loop with eta = 0.02 (its authors' settings, not scaled with L: a token "
            'is corrected 8 times less often',
        ),
        ([dict(policy='remdm-loop', budgets=[128])], "ReMDM-loop with eta = 0.055 (not its authors' settings)"),
    ],
)
def test_table1_says_how_remdm_was_set(tmp_path, entries, said):
    assert said in table1(read(made_up(tmp_path / 's', dict(GRID, entries=entries)))).note
