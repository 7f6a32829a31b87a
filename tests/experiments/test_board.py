"The board: ranks with ties, the door, and a planted policy that ends lower."
import numpy as np
import pyarrow as pa
import pytest

from navira.sampler import registry
from navira.evaluation.diversity import vocabulary
from navira.experiments.board import (
    board, HEAD, page, parts, stores, vocabularies)
from navira.experiments.store import open_store, write_record, write_table
from navira.experiments.sweep import digest
from helpers.cli import refuses, said  # noqa: F401
from order import root

MINE = '''
from dataclasses import replace
from navira.prism import prism
from navira.sampler.registry import register
@register('mine')
def mine(eta: float = 0.1): return replace(prism(eta))
'''

@pytest.fixture(autouse=True)
def known(monkeypatch): # the names here are policies, though nobody's file
    names = ('good', 'fair', 'planted', 'good, again', 'twice', 'far')
    backbone = registry.policies()['backbone']
    monkeypatch.setattr(registry, '_registry', registry.policies() | dict.fromkeys(names, backbone))

def written(folder, task, cells, rows, **record): # cells: (policy, budget, hyper) -> key
    folder.mkdir(parents=True)
    write_table(folder/'samples.parquet', pa.Table.from_pylist(rows))
    cells = {key: dict(policy=policy, label=policy, settled=hyper, hyper=hyper, change=None, seed=0,
                       n=record.get('n', parts()[task][0].n), budget=F, steps=F, charged=F,
                       matched=True, trace=False) for (policy, F, hyper), key in cells}
    write_record(folder, dict(reference='smollm2', eos='once', cells=cells, places=[])
                 | parts()[task][1] | record)
    return folder

def puzzles(folder, right, task='sudoku-35', passes=None, **record): # right: policy -> [n] bool
    "A store of puzzles, solved alike at every budget."
    cells = [((policy, F, {}), digest([policy, F])) for policy in right
             for F in parts()[task][0].budgets]
    rows = [dict(cell=key, sample=i, tokens=None, n_forward=float(passes or F), n_remasked=0,
                 solved=bool(r)) for (policy, F, _), key in cells
            for i, r in enumerate(right[policy][:record.get('n')])]
    return written(folder, task, cells, rows, **record)

def texts(folder, nats, words=(50, 100, 200), judged=True): # nats: policy -> of a token
    "A store of texts that are more diverse with a larger nucleus, and less probable."
    s, rng = parts()['text'][0], np.random.default_rng(0)
    cells, rows, metrics = [], [], []
    for policy, high in nats.items():
        for k, (size, top_p) in enumerate(zip(words, (.5, .7, .9))):
            key = digest([policy, top_p])
            cells.append(((policy, s.budgets[0], dict(top_p=top_p)), key))
            for i in range(s.n):
                rows.append(dict(cell=key, sample=i, tokens=rng.integers(0, size, 128).tolist(),
                                 n_forward=64., n_remasked=0))
                metrics.append(dict(cell=key, sample=i, reference='smollm2', weight_once=128.,
                                    nll_once=128 * (high + k + rng.normal(0, .05)),
                                    entropy=np.log(size) + rng.normal(0, .05)))
    written(folder, 'text', cells, rows)
    if judged: write_table(folder/'metrics.parquet', pa.Table.from_pylist(metrics))
    return folder

@pytest.fixture(scope='module')
def right():
    rng = np.random.default_rng(0)
    n = parts()['sudoku-35'][0].n
    return {'good': rng.random(n) < .9, 'fair': rng.random(n) < .7, 'planted': rng.random(n) < .2}

def ranks(table): # policy -> its ranges, by column
    rows = table.rows.set_index('policy')
    return rows.apply(lambda column: column.str.split(':').str[0])

def test_a_planted_worse_policy_ends_lower_and_equal_ones_share_a_rank(right, tmp_path):
    same = right | {'good, again': right['good']}
    each = [puzzles(tmp_path/'me'/k, same, k) for k in ('sudoku-35', 'sudoku-25')]
    made, here = board(dict.fromkeys(each, ' [me]')), ' [me]'
    assert [t.title.count('sudoku') for t in made] == [2, 1, 1]
    for table in made:
        of = ranks(table).drop(columns='passes run')
        assert set(of.loc[f'planted{here}']) == {'4–4'}
        assert set(of.loc[f'fair{here}']) == {'3–3'}
        assert set(of.loc[[f'good{here}', f'good, again{here}']].stack()) == {'1–2'}
        assert table.rows.policy.iloc[-1] == f'planted{here}'
        assert set(ranks(table)['passes run']) == {'1–4'}

def test_twice_the_perplexity_is_a_ratio_of_two_and_elsewhere_there_is_none(tmp_path):
    home = tmp_path/'results'
    st = texts(home/'board'/'a'/'text', {'backbone': 3., 'twice': 3 + np.log(2)})
    far = texts(home/'board'/'b'/'text', {'far': 3.}, (2, 3, 4))
    rows = board(stores([st, far], home))[0].rows.set_index('policy').filter(like='at equal')
    for v in rows.loc['twice']:
        assert v.startswith('2–2: ') and abs(float(v.split()[1]) - 2) < .2, v
    assert rows.loc['far'].isna().all() and list(rows.index) == ['backbone', 'twice', 'far']

def test_a_store_that_does_not_belong_there_is_told_what_was_expected(
        right, tmp_path, refuses, monkeypatch):
    monkeypatch.chdir(tmp_path)         # no committed stores
    refuses('0 samples for the board', 'board', puzzles(tmp_path/'few', right, n=30))
    short = puzzles(tmp_path/'short', dict(good=right['good']), passes=1)
    refuses('ran 1 passes; expected at least', 'board', short)
    other = puzzles(tmp_path/'other', right, fingerprint='0123456789abcdef')
    refuses("'fingerprint': '0123456789abcdef'", 'board', other)
    one = puzzles(tmp_path/'one', right, prompt=dict(task='sudoku-36', of=''))
    refuses("task 'sudoku-36': did you mean 'sudoku-35'?", 'board', one)
    refuses('evaluated: False', 'board', texts(tmp_path/'text', {'backbone': 3.}, judged=False))
    refuses("'backbone': expected", 'board', texts(tmp_path/'alone', {'prism': 3.}))
    refuses('not found', 'board', tmp_path/'nowhere')
    refuses("policy 'prisn': did you mean 'prism'?", 'board',
            puzzles(tmp_path/'fileless', dict(prisn=right['good'])))

def test_a_submission_has_its_file_in_each_store_which_the_board_prints_and_never_runs(
        right, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, '_registry', registry.policies())     # forgets it afterwards
    (tmp_path/'mine.py').write_text(MINE)
    grid = 'budgets = [4]\nn = 2\nmetrics = []\n[others]\nimported = true\n'
    grid += '[parts.a]\nlength = 8\n[parts.b]\nlength = 16\n'
    (tmp_path/'grid.toml').write_text(grid)
    code, printed = said(capsys, 'sweep', tmp_path/'grid.toml', '--import', tmp_path/'mine.py',
                         '--store', tmp_path/'runs')
    assert not code, printed.err
    for part, length in ('a', 8), ('b', 16):
        swept = open_store(tmp_path/'runs'/part)
        assert swept.record['length'] == length
        assert {c['policy'] for c in swept.cells.values()} == {'mine'}
        assert (swept.folder/'mine.py').read_text() == MINE
    st = puzzles(tmp_path/'me'/'sudoku-35', right)
    (st/'evil.py').write_text('raise SystemExit("run")\n')
    made = board(stores([tmp_path/'me'], tmp_path/'nothing'))
    text = page(made, [st, st])
    assert HEAD in text and text.count('    raise SystemExit("run")') == 1
    assert {*made[0].rows.policy} == {f'{k} (me/evil.py) [me]' for k in right}

def test_a_store_moves_no_row_of_another_folder_and_counts_once(right, tmp_path, monkeypatch):
    n = parts()['sudoku-35'][0].n
    ours = puzzles(tmp_path/'results'/'sudoku-35', right | dict(prism=right['fair']))
    theirs = puzzles(tmp_path/'theirs'/'sudoku-35', dict(prism=np.ones(n, bool)))
    monkeypatch.chdir(tmp_path)
    row = board({ours: ''})[0].rows.set_index('policy').loc['prism', '8 passes'].split(': ')[1]
    made = board(stores([theirs, theirs, ours]))[0].rows.set_index('policy')['8 passes']
    assert made['prism'].split(': ')[1] == row and '100 [' in made['prism [theirs]']
    assert len(made) == 5

NAME = '<img src=x onerror=alert(1)>\n# [a](javascript:b) `c`'

def test_a_page_prints_files_and_names_as_text_and_no_target_of_a_link(
        right, tmp_path, refuses, monkeypatch):
    monkeypatch.chdir(tmp_path)
    st = puzzles(tmp_path/NAME/'sudoku-35', {NAME: right['good']})
    mine = st/f'{NAME}.py'
    mine.write_text('x = "<b>"')
    text = page(board(stores([st])), [st])
    assert '    x = "<b>"' in text
    assert not [part for part in ('<img', '\n# [', '[a]', '`') if part in text]
    mine.unlink()
    moved = (tmp_path/NAME).rename(tmp_path/'me')/'sudoku-35'
    (moved/'x.py').symlink_to(root/'LICENSE')
    refuses(str(moved/'x.py'), 'board', moved, '--out', tmp_path/'page.md')
    assert not (tmp_path/'page.md').exists()

def test_words_of_halves_are_counted_as_one_by_one():
    rng = np.random.default_rng(0)
    ids, keep = rng.integers(0, 40, (12, 30)), rng.random((9, 12)) < .5
    assert vocabularies(keep, ids).tolist() == [vocabulary(ids[k]) for k in keep]
