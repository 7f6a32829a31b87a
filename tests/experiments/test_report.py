"""Every table and figure of a store, by one command."""
import numpy as np
import pytest
from rich.console import Console

import navira.base.runs as fg_runs
import navira.experiments.report as fg_report
from navira.experiments.old_sweep import read_sweep
from navira.experiments.old_store import read_table, write_table
from navira.experiments.old_run import run
from navira.experiments.measure import evaluate_store
from navira.experiments.frames import compact
from navira.experiments.old_results import Missing, number, read
from navira.experiments.style import made_with
from navira.experiments.figures import plane
from navira.experiments.report import own_first, paired, report
from navira.cli.app import main
from toys import small_lm
from helpers.figures import GRID, is_png, made_up, reported, toy  # noqa: F401

@pytest.fixture
def own_policy():
    from navira.prism import prism
    from navira.registry import _about, _registry, register
    def mine(eta: float = .1): return prism(eta)
    register('mine')(mine)
    yield
    _registry.pop('mine'), _about.pop('mine')

def number_of(p): return number(p.log_perplexity)

def test_a_store_with_few_texts_here_and_there_has_its_report(tmp_path):
    "As a sweep leaves it that was stopped early, or was asked for a handful of texts"
    entries = [dict(policy='backbone', n=4), dict(policy='prism', n=4), dict(policy='navira-det', n=24)]
    store = made_up(tmp_path / 's', dict(GRID, entries=entries))
    with pytest.warns(UserWarning, match='2 of 3 points have fewer than 8 texts'): r = read(store)
    assert [p.name for p in r.points] == ['NAVIRA-det'] and number_of(r.points[0]).known
    with pytest.warns(UserWarning): files = report(store, tmp_path / 'out', Console(file=open('/dev/null', 'w')))
    assert {'report.md', 'grid.md', 'plane.png'} <= {f.name for f in files}

def test_a_handful_of_judged_texts_is_not_judged(tmp_path):
    store = made_up(tmp_path / 's', dict(GRID, entries=[dict(policy='prism'), dict(policy='navira-det')]))
    path = store.metric(store.keys[0], 'perplexity', 'smollm2')
    table, about = read_table(path)
    write_table(path, table.slice(0, 5), about)
    r = read(store)
    few = next(p for p in r.points if not p.scored)
    with pytest.raises(Missing, match='measured on 5 texts, an interval needs 8'): few.log_perplexity
    assert report(store, tmp_path / 'out', Console(file=open('/dev/null', 'w')))

def test_report_is_the_same_again(toy, reported, tmp_path):
    again = report(toy.store, tmp_path / 'again')
    assert [f.read_bytes() for f in reported[0]] == [f.read_bytes() for f in again]

def test_a_report_is_written_whole_or_not_at_all(toy, tmp_path, monkeypatch):
    "A disk that is full after a few files: what was there before is there still, and nothing else"
    import errno
    monkeypatch.setattr('navira.experiments.report.PARTS', {k: fg_report.PARTS[k] for k in ('claims', 'plane', 'grid')})
    out = tmp_path / 'report'
    files = report(toy.store, out)
    assert files[0] == out / 'report.md'
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in files)
    assert all(p.is_file() for p in files)
    for p in files: p.write_text('older')
    (out / 'notes.md').write_text('mine')
    before = {p: p.read_bytes() for p in out.iterdir()}
    for call in range(len(files)):
        calls, write = iter(range(10**6)), fg_runs.atomic_write
        def full(path):
            if next(calls) >= call: raise OSError(errno.ENOSPC, 'No space left on device', str(path))
            return write(path)
        with monkeypatch.context() as m:
            m.setattr('navira.experiments.report.atomic_write', full)
            with pytest.raises(OSError, match="No space left"): report(toy.store, out)
        assert {p: p.read_bytes() for p in out.iterdir()} == before
    report(toy.store, out)
    assert (out / 'report.md').read_text().startswith('# Results') and (out / 'notes.md').read_text() == 'mine'

@pytest.mark.parametrize(
    'without, kept', [(('perplexity',), {'claims', 'grid', 'table-1'}), (('perplexity', 'entropy'), {'claims', 'grid'})]
)
def test_report_on_a_store_that_was_not_measured(tmp_path, without, kept):
    files = report(made_up(tmp_path / 's', without=without), tmp_path / 'out')
    assert {f.stem for f in files} - {'report'} == kept
    assert 'figure-3: ' in files[0].read_text() and 'navira evaluate' in files[0].read_text()

def test_report_on_the_backbone_alone(tmp_path):
    files = report(made_up(tmp_path / 's', dict(GRID, entries=[dict(policy='backbone')])), tmp_path / 'out')
    assert {'plane', 'grid'} <= {f.stem for f in files}

def test_a_report_of_own_policies_begins_with_them_and_claims_nothing(tmp_path, own_policy):
    entries = [dict(policy='prism', eta=.08), dict(policy='backbone'), dict(policy='mine', eta=.08)]
    r = read(made_up(tmp_path / 's', dict(GRID, budgets=[32, 64, 128], entries=entries)))
    r.record['own'] = dict(mine='source:0')
    text = report(r, tmp_path / 'out')[0].read_text()
    assert [p.name for p in own_first(r)] == ['mine'] * 3 + ['PRISM'] * 3 + ['MDLM backbone'] * 3
    rows = paired(r).rows
    assert [row[:2] for row in rows] == [(n, F) for n in ('mine', 'MDLM backbone') for F in (32, 64, 128)]
    p, q = r.at('PRISM', 64)[0], r.at('mine', 64)[0]
    assert rows[1][3].value == pytest.approx(np.exp(q.log_perplexity[0] - p.log_perplexity[0]))
    assert rows[1][4].value == pytest.approx(q.entropy[0] - p.entropy[0])
    assert 'Claim' not in text and 'claim' not in text

def test_report_on_strange_labels(tmp_path):
    labels = ['$a_1', '_hidden', 'a|b & c', 'x' * 300, '<b>', 'PRISM']
    config = dict(GRID, entries=[dict(policy='prism', eta=.08, on=.02 + .1 * i, label=l) for i, l in enumerate(labels)])
    files = report(made_up(tmp_path / 's', config), tmp_path / 'out')
    assert all(map(is_png, (f for f in files if f.suffix == '.png')))
    r = read(tmp_path / 's')
    assert [p.name for p in r.points if p.name.startswith('PRISM')] == ['PRISM (prism, other settings)']
    fig = plane(r)
    assert len(fig.axes[0].get_legend_handles_labels()[1]) == len(labels)

def test_both_rules_for_separators(toy, tmp_path):
    assert '(separators: once)' in made_with(toy, toy.points)
    text = report(toy.store, tmp_path / 'out', eos='stop', reference='smollm2')[0].read_text()
    assert '(separators: stop)' in text and '(separators: once)' not in text

def test_unknown_names(toy):
    with pytest.raises(KeyError, match="did you mean 'PRISM'"): toy.point('PRSIM', 128)
    with pytest.raises(KeyError, match="did you mean 'stop'"): read(toy.store, eos='stpo')
    with pytest.raises(KeyError, match="did you mean 'smollm2'"): read(toy.store, reference='smolm2')
    with pytest.raises(FileNotFoundError): report(toy.store.folder / 'nowhere', 'out')

# --- from sampling to report ------------------------------------------------------------------------------------------

def test_a_real_store_and_its_small_copy_make_one_report(tmp_path):
    """Sampled, measured, copied, reported by the command line: what is drawn from the copy is what is drawn from the
    store"""
    entries = [
        dict(policy='prism', eta=0.3, budgets=[6], trace=True),
        *[dict(policy=p, eta=0.3, budgets=[12], trace=True) for p in ('navira-det', 'navira')],
        dict(policy='backbone'),
    ]
    store = run(
        read_sweep(
            dict(
                budgets=[6, 12],
                n=12,
                batch_size=6,
                keep=4,
                metrics=['entropy', 'repetition', 'sets'],
                device='cpu',
                entries=entries,
            )
        ),
        tmp_path / 'store',
        small_lm(seed=3),
    )
    small = compact(evaluate_store(store), tmp_path / 'small')
    for folder in (store.folder, small.folder):
        with pytest.raises(SystemExit) as done:
            main(['report', '--store', str(folder), '--out', str(folder) + '-report'])
        assert not done.value.code
    names = [sorted(f.name for f in tmp_path.glob(f'{s}-report/*')) for s in ('store', 'small')]
    assert names[0] == names[1] and {'table-1.md', 'table-2.tex', 'varied.md', 'report.md'} <= set(names[0])
    assert all(
        (tmp_path / 'store-report' / n).read_bytes() == (tmp_path / 'small-report' / n).read_bytes() for n in names[0]
    )
