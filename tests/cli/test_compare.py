"""`navira compare`: what it runs, what it says, and the files that it writes."""

import json, re

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from helpers.cli import net, refuses, run, said  # noqa: F401
from helpers.grids import four, grid_folder  # noqa: F401
from helpers.replay import data_of, states
from toys import small_lm

QUICK = '-n', 8, '--reference', 'none'


def cells(folder):
    return json.loads((folder / 'compare.json').read_text())['cells']


def test_a_comparison_shows_texts_a_table_and_two_policies_side_by_side(run, tmp_path):
    typed = 'compare backbone,prism:eta=.3 navira-det:eta=.3 --budgets 8,24'
    args = [*typed.split(), *QUICK, '--out', tmp_path]
    printed = run(*args, '--show', 1)
    first, rest = printed.split('8 texts of 128 tokens a cell, seed 0')
    assert [l for l in first.splitlines() if l[:1].isalpha()] == [
        'prism:eta=.3',
        'navira-det:eta=.3',
    ]
    assert first.count('· It was a dark night') == 2 and 'charged' in rest and rest.count('·') == 3
    about = [
        (c['label'], c['policy'], c['budget'], c['charged'], c['hyper'], len(c['texts']))
        for c in cells(tmp_path)
    ]
    assert about[3:] == [
        ('backbone', 'backbone', 24, 24, {}, 8),
        ('prism:eta=.3', 'prism', 24, 24, dict(eta=0.3), 8),
        ('navira-det:eta=.3', 'navira-det', 24, 24, dict(eta=0.3), 8),
    ]
    data = data_of((tmp_path / 'replay.html').read_text())
    assert [p['name'] for p in data['panels']] == ['prism:eta=.3', 'navira-det:eta=.3']
    row = int(re.search(r'24 forward passes, seed 0, sample (\d)', data['title'])[1])
    for panel, c in zip(data['panels'], cells(tmp_path)[4:]):
        assert ''.join(data['vocab'][i] for i in list(states(panel))[-1][0]) == c['texts'][row]
    assert run(*args, '--show', 1) == printed  # times too: nothing is sampled again


def test_all_means_all_that_the_model_can_run(tmp_path, capsys, monkeypatch):
    import navira

    model = small_lm(quality_blocks=None)
    words = {f'w{i}': i for i in range(10)} | {'<|mask|>': 10}
    model.tokenizer = Tokenizer(WordLevel(words, unk_token='w0'))
    monkeypatch.setattr(navira, 'load', lambda *a, **how: model, raising=False)
    args = [*'compare --budgets 4 -n 1 --reference none --show 0 --out'.split(), tmp_path]
    code, printed = said(capsys, *args, 'all')
    ran = {c['policy'] for c in cells(tmp_path)}
    assert (
        not code
        and {'backbone', 'mdlm', 'remdm-cap'} <= ran
        and not {'prism', 'navira', 'token-critic'} & ran
    )
    assert (
        'left out: prism: ' in printed.err
        and "left out: token-critic: the critic's vocabulary" in printed.err
    )


def test_the_first_puzzle_that_tells_two_policies_apart_is_shown(grid_folder, capsys, tmp_path):  # noqa: F811
    from navira.tasks.sudoku import is_solved, puzzles

    code, printed = said(
        capsys,
        *'compare backbone:top_p=1,mask-predict --task sudoku:2x2-14 -n 60 --budgets 2'.split(),
        '--model', grid_folder, '--out', tmp_path,
    )
    k, worst, best = re.search(
        r'Puzzle (\d+), the first that (\S+) gets wrong and (\S+) right', printed.out
    ).groups()
    asked = puzzles(four, 14, 0, 60)
    digits = {
        c['label']: np.array([[int(d) - 1 for d in t] for t in c['texts']]) for c in cells(tmp_path)
    }
    right = {label: is_solved(four, grids, asked) for label, grids in digits.items()}
    apart = ~right[worst] & right[best]
    assert (
        not code
        and apart.argmax() == int(k)
        and apart[int(k)]
        and right[worst].mean() < right[best].mean()
    )
    assert all(c['solved'] == right[c['label']].mean() for c in cells(tmp_path))
    assert f'sample {k}' in (tmp_path / 'replay.html').read_text()
    assert (tmp_path / 'compare.png').stat().st_size > 10_000 and 'solves' in printed.out


@pytest.mark.parametrize(
    'sentence, typed',
    [
        ("did you mean 'sudoku'?", '--task sudoko'),
        ("did you mean 'navira-det'?", '-p prism,navira-dett'),
        ('budget=1', '--budgets 1 -p navira'),
        ('cannot write to', '--out /proc/no/demo'),
        ('are the same cell', 'navira navira:tau=.2'),
    ],
)
def test_a_mistake_is_named_before_anything_is_sampled(sentence, typed, refuses, tmp_path):
    out = [] if '--out' in typed else ['--out', tmp_path / 'out']
    refuses(sentence, 'compare', *typed.split(), *out)
