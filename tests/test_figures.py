"""Notebook 13 as its users treat it: on stores that are incomplete, hostile or wrong, and against answers that are known."""
import math, struct, subprocess, sys, warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pyarrow as pa, pytest, torch
from hypothesis import given, settings, strategies as st
from rich.console import Console

import navira.experiments as ex
import navira.figures as fg
from navira import metrics
from navira.cli import main
from toys import small_lm

SLOPES = {'backbone': 0., 'prism': 3., 'navira-det': 4., 'navira': 5., 'prism-stochastic': 3.}
ETAS = [.02, .04, .08]
GRID = dict(budgets=[128], n=24, batch_size=24, metrics=['entropy', 'perplexity'], entries=[dict(policy='backbone', budgets=[64, 128]), *[dict(policy=p, vary=dict(eta=ETAS)) for p in SLOPES if p != 'backbone']])


def coordinates(cell, T):
    "entropy, log-perplexity, tokens taken back: straight lines from the backbone with as many steps, (4.3, 6, 0) at 128; half of them stand .1 higher"
    r = 2 * ex.settled(cell).get('eta', 0.) * T**.5 * (cell.policy in SLOPES)
    return 4.3 - r, 6. - .1 * math.log2(T / 128) - SLOPES.get(cell.policy, 0.) * r, 200. * r

def made_up(folder, config=GRID, spread=.05, rng=None, without=(), name='made-up'):
    "A store without a model. With `rng` texts are noise around the truth, else their mean is exact."
    grid = ex.read_sweep(config)
    who = dict(fingerprint=name, length=128, prompt=None, dtype='float32', device='cpu', batch_size=grid.batch_size)
    store = ex.claim(folder, grid, who, place=dict(device_name='no device'))
    for cell in ex.cells(grid):
        key, n = ex.cell_key(cell, name, 128), cell.n
        about = ex.describe(cell, key, store.record, 128)
        z = (rng or np.random.default_rng(int(key, 16))).standard_normal((2, n)) * spread
        if rng is None: z -= z.mean(1, keepdims=True)
        H, y, taken = coordinates(cell, about['n_steps'])
        ids = dict(sample=pa.array(range(n), pa.int32()), crc=pa.array(ex.checksums([[0] * 128] * n)))
        columns = ids | dict(tokens=pa.array([[0] * 128] * n, pa.list_(pa.uint16())), n_forward=pa.array([128] * n, pa.int32()), n_remasked=pa.array([round(taken)] * n, pa.int32()), seconds=pa.array([.1] * n))
        if cell.trace: columns |= dict(remasked=(w := ex.by_step(torch.zeros(about['n_steps'], n, 128, dtype=torch.bool).index_fill(2, torch.tensor([1, 2]), True))), written=w)
        ex.write_table(store.cell(key), pa.table(columns), about)
        if 'entropy' not in without: ex.write_table(store.metric(key, 'entropy'), pa.table(ids | dict(entropy=H + z[0])), dict(key=key, metric='entropy', reference=None))
        if 'perplexity' not in without:
            nll = {k: v for r in metrics.eos_rules for k, v in ((f'nll_{r}', 100 * (y + z[1])), (f'weight_{r}', np.full(n, 100.)))}
            ex.write_table(store.metric(key, 'perplexity', 'smollm2'), pa.table(ids | nll), dict(key=key, metric='perplexity', reference='smollm2'))
    return ex.open_store(folder)

@pytest.fixture(scope='module')
def toy(tmp_path_factory): return fg.read(made_up(tmp_path_factory.mktemp('toy') / 'store'))


# --- numbers -----------------------------------------------------------------------------------------------------------------

def test_intervals_hold_the_truth_as_often_as_they_say():
    "Means, ratios of sums and a difference, at 32 texts: percentile intervals fall a little short of 95 %"
    rng, hit = np.random.default_rng(0), np.zeros(3)
    for _ in range(300):
        v, w, z = rng.standard_normal(32), rng.uniform(50, 150, 32), rng.standard_normal(32)
        for k, d in enumerate((fg.mean(v + 1), fg.mean(w * (1 + .3 * v), w), fg.mean(v) - fg.mean(v + .5 * z))):
            x = fg.number(d); hit[k] += x.lo <= (1, 1, 0)[k] <= x.hi
    assert (hit / 300 > .9).all() and (hit / 300 < .985).all()

def test_agrees_with_the_bootstrap_of_notebook_11():
    v, w = np.random.default_rng(1).uniform(1, 2, (2, 200))
    x = fg.number(fg.mean(v, w), np.exp)
    np.testing.assert_allclose((x.lo, x.hi), metrics.bootstrap(v, w, np.exp), rtol=.005)
    assert x.value == pytest.approx(np.exp(v.sum() / w.sum()))

@given(st.integers(1, 40), st.data())
@settings(max_examples=30, deadline=None)
def test_texts_that_were_not_judged_do_not_count(n, data):
    judged = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    v = np.where(judged, 2., np.nan)
    d = fg.mean(v, np.where(judged, 4., np.nan))
    if not any(judged): assert np.isnan(d[0])
    else: assert d[0] == .5
    assert fg.number(d).known <= (sum(judged) >= fg.FEW)

def test_what_is_alike_cancels():
    "Cells of equal size are resampled alike, so noise that they share is not in their difference"
    z = np.random.default_rng(0).standard_normal(50)
    x = fg.number(fg.mean(z + 1) - fg.mean(z))
    assert x.hi - x.lo < 1e-9 and x.value == pytest.approx(1)

@given(st.integers(1, 60), st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_a_text_counts_alike_whatever_the_number_of_texts(n, m):
    k = min(n, m)
    assert (fg.resamplings(n)[:, :k] == fg.resamplings(m)[:, :k]).all()

def test_what_is_alike_cancels_between_cells_of_different_size():
    "64 of 100 texts are shared: the difference is as sharp as the rest allows, and still holds the truth"
    rng, hit, widths = np.random.default_rng(0), 0, []
    for _ in range(200):
        z = rng.standard_normal(100)
        x = fg.number(fg.mean(z[:64] + .1 * rng.standard_normal(64)) - fg.mean(z))
        hit += x.lo <= 0 <= x.hi; widths.append(x.hi - x.lo)
    assert .9 <= hit / 200 and np.median(widths) < .8 * 2 * 1.96 * (1 / 64 + 1 / 100)**.5

def test_seeds_keep_their_place_in_cells_of_different_size(tmp_path):
    r = fg.read(made_up(tmp_path / 's', dict(GRID, seeds=[0, 1], entries=[dict(policy='prism', eta=.08), dict(policy='navira-det', eta=.08, n=12)])))
    p, q = ([(i, s) for i, s in zip(r.point(n, 128).rows['sample'], r.point(n, 128).rows['seed'])] for n in ('PRISM', 'NAVIRA-det'))
    assert p[:24] == q and len(p) == 48

@pytest.mark.parametrize('lost, known', [(0, True), (40, True), (80, False)])
def test_where_too_many_resamplings_do_not_have_it_there_is_no_interval(lost, known):
    d = np.r_[1., np.random.default_rng(0).normal(1, .1, 2000)]; d[1:1 + lost] = np.nan
    x = fg.number(d)
    assert x.known == known and (not known or x.lo <= fg.number(d[[0, *range(1 + lost, 2001)]]).lo)

@given(st.floats(-1e6, 1e6), st.floats(0, 1e5))
def test_a_number_prints_its_three_parts(v, w):
    text = str(fg.Number(v, v - w, v + w)).replace('−', '-')
    got = [float(t) for t in text.replace('[', '').replace(']', '').replace(',', '').split()]
    assert len(got) == 3 and got == sorted([got[1], got[0], got[2]])[1:2] + [got[1], got[2]] and '-0 ' not in text + ' '
    np.testing.assert_allclose(got, [v, v - w, v + w], atol=max(.051 * w, .0051 * abs(v), 1e-9) * 1.01)


# --- curves ------------------------------------------------------------------------------------------------------------------

@given(st.lists(st.floats(.05, 1), min_size=1, max_size=6), st.floats(-5, 5), st.floats(0, 1))
def test_reading_is_exact_on_a_straight_line(steps, slope, share):
    x = 4.3 - np.cumsum([0, *steps]); y = 6 + slope * x
    at = x[-1] + share * (x[0] - x[-1])
    assert fg.reading(x[:, None], y[:, None], at)[0] == pytest.approx(6 + slope * at, abs=1e-9)

@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=2, max_size=6), st.floats(-1, 6))
def test_reading_stays_within_the_curve(points, at):
    x, y = np.array(points).T
    v = fg.reading(x[:, None], y[:, None], at)[0]
    if min(x) <= at <= max(x): assert min(y) - 1e-9 <= v <= max(y) + 1e-9
    else: assert math.isnan(v)

def truth(a, b):
    "of `worth`: where entropies are equal, in the middle of the common range"
    reach = min(2 * .08 * (128 if p.startswith('prism') else 64)**.5 for p in (a, b))
    return (SLOPES[a] - SLOPES[b]) * reach / 2 + .1 * (a.startswith('prism') - b.startswith('prism'))

@pytest.mark.parametrize('a, b, names', [('prism', 'navira-det', ('PRISM', 'NAVIRA-det')), ('navira-det', 'navira', ('NAVIRA-det', 'NAVIRA tau=0.2')), ('prism', 'prism-stochastic', ('PRISM', 'PRISM stochastic'))])
def test_worth_is_what_was_put_in(toy, a, b, names):
    for along in fg.ALONG:
        assert fg.worth(toy, *names, along)[0] == pytest.approx(truth(a, b), abs=.01)
        np.testing.assert_allclose(fg.worth(toy, *names, along), -fg.worth(toy, *names[::-1], along))

def test_a_curve_starts_from_the_backbone_with_as_many_steps(toy, tmp_path):
    for name, F in {'PRISM': 128, 'PRISM stochastic': 128, 'NAVIRA-det': 64, 'NAVIRA tau=0.2': 64}.items():
        first, *rest = fg.curve(toy, name, 128)
        assert (first.name, first.budget) == ('MDLM backbone', F) and [p.dial for p in rest] == ETAS and {p.steps for p in (first, *rest)} == {F}
    lone = fg.read(made_up(tmp_path / 's', dict(GRID, entries=[dict(GRID['entries'][0], budgets=[128]), *GRID['entries'][1:]])))
    assert [p.dial for p in fg.curve(lone, 'NAVIRA-det', 128)] == ETAS          # the backbone at 128 forwards has twice the steps

def test_the_same_rule_in_one_pass_and_in_two(tmp_path):
    "Nothing but the backbone differs: that is what the second pass costs, at equal entropy and at equal remasks"
    base = fg.read(made_up(tmp_path / 's', dict(GRID, entries=[e for e in GRID['entries'] if e['policy'] in ('backbone', 'prism', 'navira-det')])))
    alike = [replace(p, rows=p.rows.assign(nll=p.rows.nll + 100 * (4. - 3.) * 2 * p.dial * 64**.5)) if p.name == 'NAVIRA-det' else p for p in base.points]
    for along in fg.ALONG: assert fg.worth(replace(base, points=alike), 'PRISM', 'NAVIRA-det', along)[0] == pytest.approx(.1, abs=.01)      # remasks are whole numbers

def test_worth_holds_the_truth(tmp_path):
    "Interpolation and all: 40 stores of noise"
    rng, hit = np.random.default_rng(0), 0
    base = made_up(tmp_path / 'base', dict(GRID, entries=[GRID['entries'][0], *[e for e in GRID['entries'] if e['policy'] in ('prism', 'navira-det')]]))
    r = fg.read(base)
    for _ in range(40):
        ps = []
        for p in r.points:
            H, y, _ = p.entropy[0], p.log_perplexity[0], None
            z = rng.standard_normal((2, p.n)) * .1
            ps.append(replace(p, rows=p.rows.assign(entropy=H + z[0], nll=100 * (y + z[1]))))
        x = fg.number(fg.worth(replace(r, points=ps), 'PRISM', 'NAVIRA-det'))
        hit += x.lo <= truth('prism', 'navira-det') <= x.hi
    assert hit >= 34

def test_curves_that_do_not_meet_are_missing(toy):
    far = [p if p.name != 'NAVIRA-det' else replace(p, rows=p.rows.assign(entropy=p.rows.entropy - 9)) for p in toy.points if p.name in ('PRISM', 'NAVIRA-det')]
    with pytest.raises(fg.Missing, match='do not overlap'): fg.worth(replace(toy, points=far), 'PRISM', 'NAVIRA-det')


# --- claims ------------------------------------------------------------------------------------------------------------------

CLAIM = fg.Claim('A is lower.', '9.9', 'a ratio', None, -1, scale=np.exp)

@pytest.mark.parametrize('centre, said', [(-.5, 'holds'), (.5, 'does not hold'), (0., 'cannot tell')])
def test_a_verdict_is_computed(centre, said):
    d = fg.mean(np.random.default_rng(0).standard_normal(100) * .5) ; d = d - d[0] + centre
    f = fg.judged(replace(CLAIM, measure=lambda r: {'here': d}), None)
    assert f.verdict == said and f.number.value == pytest.approx(np.exp(centre))
    assert fg.judged(replace(CLAIM, measure=lambda r: {'here': d}, side=1), None).verdict == {'holds': 'does not hold', 'does not hold': 'holds'}.get(said, said)
    assert said.capitalize() in fg.paragraph(f) or said[0].upper() + said[1:] in fg.paragraph(f)

def test_too_few_texts_cannot_tell():
    assert fg.judged(replace(CLAIM, measure=lambda r: {'here': fg.mean([-1., -1.1, -.9])}), None).verdict == 'cannot tell'

def test_what_is_missing_cannot_be_told(toy):
    def measure(r): raise fg.Missing('this and that')
    f = fg.judged(replace(CLAIM, measure=measure), toy)
    assert (f.verdict, f.lack) == ('cannot tell', 'this and that') and 'this and that' in fg.paragraph(f)

def test_claims_of_the_toy(toy):
    by = {f.claim.text: f for f in fg.findings(toy)}
    assert by['NAVIRA-det achieves lower perplexity than PRISM.'].verdict == ('holds' if SLOPES['navira-det'] / 2**.5 > SLOPES['prism'] else 'does not hold')
    assert by['Decoupled remasking corrects better: NAVIRA-det has a better trade-off than PRISM.'].verdict == 'holds'
    assert by['Margin-based remasking collapses substantially faster than PRISM.'].verdict == 'cannot tell'
    assert all(f.verdict in fg.VERDICTS.values() for f in by.values())
    assert len(fg.claims(toy).rows) == len(fg.CLAIMS) and 'p{' in fg.claims(toy).latex().split(chr(10))[2]

def test_no_best_temperature_by_chance(tmp_path):
    "Temperatures that do not differ: the one that looks best is not measured on the texts that it was chosen on"
    config = dict(GRID, n=32, budgets=[64], entries=[dict(policy='navira', tau=t, eta=.08) for t in (.05, .2, .5, 1.)])
    said, rng = [], np.random.default_rng(0)
    for i in range(40):
        r = fg.read(made_up(tmp_path / str(i), config, rng=rng))
        said.append(fg.number(np.mean(list(fg.no_best_temperature(r).values()), 0)).side())
    assert said.count(1) <= 6 and said.count(-1) <= 6           # 2.5 % each and a little more, of 40


# --- tables ------------------------------------------------------------------------------------------------------------------

HOSTILE = ['a|b', 'a & b', r'\input{x}', '50 %', '$x$', '<script>alert(1)</script>', '[red]a[/red]', '[a](http://b)', '*a*', '_a_', '`a`', 'a\nb', '# a', '\x1b[31ma', '[2cm] a', 'é – τ', '{', '}', '~', '^', '']

@pytest.mark.parametrize('text', HOSTILE, ids=ascii)
def test_a_label_is_only_text(text):
    t = fg.Table('t', ('a', 'b'), [(text, fg.Number(1, .9, 1.1))])
    row = t.markdown().split('\n')[4]
    assert row.count('|') - row.count(r'\|') == 3 and '<' not in row and '](' not in row and '\x1b' not in row
    line = t.latex().split('\n')[6]
    assert line.endswith(r'\\') and line.startswith('{}') and not any(line.replace('\\' + c, '').count(c) for c in '$%#_')
    assert line.count('&') - line.count(r'\&') == 1 and r'\input' not in line
    assert '<script' not in t._repr_html_()
    console = Console(width=60, record=True, file=open('/dev/null', 'w'))
    console.print(fg.terminal(t))
    assert ' '.join(text.replace('\x1b', '').split()) in ' '.join(console.export_text().split())

def test_latex_braces_balance():
    for text in HOSTILE:
        bare = fg.tex(text).replace(r'\{', '').replace(r'\}', '')
        assert bare.count('{') == bare.count('}')

def test_no_cell_without_an_interval(tmp_path):
    "Three texts are too few for an interval: there is nothing to read"
    with pytest.raises(fg.Missing, match='at most 3 texts a point, and an interval needs 8'): fg.read(made_up(tmp_path / 's', dict(GRID, n=3, batch_size=3)))

def test_a_store_with_few_texts_here_and_there_has_its_report(tmp_path):
    "As a sweep leaves it that was stopped early, or was asked for a handful of texts"
    entries = [dict(policy='backbone', n=4), dict(policy='prism', n=4), dict(policy='navira-det', n=24)]
    store = made_up(tmp_path / 's', dict(GRID, entries=entries))
    with pytest.warns(UserWarning, match='2 of 3 points have fewer than 8 texts'): r = fg.read(store)
    assert [p.name for p in r.points] == ['NAVIRA-det'] and number_of(r.points[0]).known
    with pytest.warns(UserWarning): files = fg.report(store, tmp_path / 'out', Console(file=open('/dev/null', 'w')))
    assert {'report.md', 'figure-3.png', 'plane.png'} <= {f.name for f in files}

def number_of(p): return fg.number(p.log_perplexity)

def test_a_handful_of_judged_texts_is_not_judged(tmp_path):
    store = made_up(tmp_path / 's', dict(GRID, entries=[dict(policy='prism'), dict(policy='navira-det')]))
    path = store.metric(store.keys[0], 'perplexity', 'smollm2')
    table, about = ex.read_table(path)
    ex.write_table(path, table.slice(0, 5), about)
    r = fg.read(store)
    few = next(p for p in r.points if not p.scored)
    with pytest.raises(fg.Missing, match='measured on 5 texts, an interval needs 8'): few.log_perplexity
    assert fg.report(store, tmp_path / 'out', Console(file=open('/dev/null', 'w')))

def test_paper_is_as_printed():
    for row in fg.TABLE1.values(): assert set(row) <= {64, 128, 256, 512, 1024}
    assert 64 not in fg.TABLE1['PRISM'] and fg.TABLE1['NAVIRA-det'][1024] == (1.94, 2.91)
    for _, j, o in fg.TABLE2.values(): assert j < o / (2 - o)      # what notebook 11 remarks on


# --- stores ------------------------------------------------------------------------------------------------------------------

def is_png(path):
    data = path.read_bytes()
    width, height = struct.unpack('>II', data[16:24])
    return data[:8] == b'\x89PNG\r\n\x1a\n' and data[-8:-4] == b'IEND' and min(width, height) > 300

@pytest.fixture(scope='module')
def reported(toy, tmp_path_factory):
    console = Console(width=200, record=True, file=open('/dev/null', 'w'))
    return fg.report(toy.store, tmp_path_factory.mktemp('report') / 'out', console), console.export_text()

def test_report_on_the_toy(reported):
    files, _ = reported
    assert files[0].name == 'report.md' and all(f.exists() for f in files)
    figures = [f for f in files if f.suffix == '.png']
    assert len(figures) == 5 and all(map(is_png, figures))
    assert all(f.read_text().rstrip().endswith('</svg>') for f in files if f.suffix == '.svg')
    text = files[0].read_text()
    assert all(f'({f.name})' in text for f in figures) and 'no device' in text and '24 texts' in text
    lost = text.split('## Not in this store')[1]
    assert all(f'- {part}: ' in lost for part in ('table-2', 'ablations', 'varied')) and '- plane' not in lost

def test_report_is_the_same_again(toy, reported, tmp_path):
    again = fg.report(toy.store, tmp_path / 'again')
    assert [f.read_bytes() for f in reported[0]] == [f.read_bytes() for f in again]

def test_a_report_is_written_whole_or_not_at_all(toy, tmp_path, monkeypatch):
    "A disk that is full after a few files: what was there before is there still, and nothing else"
    import errno
    monkeypatch.setattr(fg, "PARTS", {k: fg.PARTS[k] for k in ('claims', 'plane', 'grid')})
    out = tmp_path / 'report'
    files = fg.report(toy.store, out)
    assert files[0] == out / 'report.md' and sorted(p.name for p in out.iterdir()) == sorted(p.name for p in files) and all(p.is_file() for p in files)
    for p in files: p.write_text('older')
    (out / 'notes.md').write_text('mine')
    before = {p: p.read_bytes() for p in out.iterdir()}
    for call in range(len(files)):
        calls, write = iter(range(10**6)), fg.written
        def full(path):
            if next(calls) >= call: raise OSError(errno.ENOSPC, 'No space left on device', str(path))
            return write(path)
        with monkeypatch.context() as m:
            m.setattr(fg, "written", full)
            with pytest.raises(OSError, match="No space left"): fg.report(toy.store, out)
        assert {p: p.read_bytes() for p in out.iterdir()} == before
    fg.report(toy.store, out)
    assert (out / 'report.md').read_text().startswith('# Results') and (out / 'notes.md').read_text() == 'mine'

@pytest.mark.parametrize('without, kept', [(('perplexity',), {'claims', 'grid', 'table-1'}), (('perplexity', 'entropy'), {'claims', 'grid'})])
def test_report_on_a_store_that_was_not_measured(tmp_path, without, kept):
    files = fg.report(made_up(tmp_path / 's', without=without), tmp_path / 'out')
    assert {f.stem for f in files} - {'report'} == kept
    assert 'figure-3: ' in files[0].read_text() and 'navira evaluate' in files[0].read_text()

def test_report_on_the_backbone_alone(tmp_path):
    files = fg.report(made_up(tmp_path / 's', dict(GRID, entries=[dict(policy='backbone')])), tmp_path / 'out')
    assert {'figure-3', 'plane', 'table-1', 'grid'} <= {f.stem for f in files}

def test_report_on_strange_labels(tmp_path):
    labels = ['$a_1', '_hidden', 'a|b & c', 'x' * 300, '<b>', 'PRISM']
    config = dict(GRID, entries=[dict(policy='prism', eta=.08, on=.02 + .1 * i, label=l) for i, l in enumerate(labels)])
    files = fg.report(made_up(tmp_path / 's', config), tmp_path / 'out')
    assert all(map(is_png, (f for f in files if f.suffix == '.png')))
    r = fg.read(tmp_path / 's')
    assert [p.name for p in r.points if p.name.startswith('PRISM')] == ['PRISM (prism, other settings)']
    fig = fg.plane(r)
    assert len(fig.axes[0].get_legend_handles_labels()[1]) == len(labels)

def test_seeds_of_one_cell_are_one_point(tmp_path):
    r = fg.read(made_up(tmp_path / 's', dict(GRID, seeds=[0, 1], entries=[dict(policy='prism', eta=.08)])))
    assert [(p.name, p.n) for p in r.points] == [('PRISM', 48)]

def test_traces_of_different_steps_are_not_compared(tmp_path):
    entries = [dict(policy=p, eta=.08, trace=True) for p in ('prism', 'navira-det', 'navira')]
    r = fg.read(made_up(tmp_path / 's', dict(GRID, entries=entries)))
    with pytest.raises(fg.Missing, match='equal numbers of steps'): fg.table2(r)
    r = fg.read(made_up(tmp_path / 't', dict(GRID, entries=[dict(e, budgets=[64 if e['policy'] == 'prism' else 128]) for e in entries])))
    assert all(row[4] == fg.Number(1, 1, 1) for row in fg.table2(r).rows)      # all take back the same two

def test_landmarks_hold_for_their_own_kind_only(toy):
    assert fg.landmarks_of(toy) == metrics.landmarks()
    for other in (replace(toy, reference='gpt2'), replace(toy, record=toy.record | dict(length=64)), replace(toy, record=toy.record | dict(config=toy.record['config'] | dict(model='x')))): assert fg.landmarks_of(other) == {}

def test_legend_covers_no_data(toy):
    "Legends stand below the axes; nothing sticks out of the figure"
    for make in (fg.figure3, fg.plane, fg.curves):
        fig = make(toy)
        fig.draw_without_rendering()
        box = fig.legends[0].get_window_extent()
        assert not any(box.overlaps(ax.get_window_extent()) for ax in fig.axes)
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= fig.bbox.x1 + 1

@pytest.fixture(scope='module')
def many(tmp_path_factory):
    "Forty policies, as a store has them that was asked for all"
    others = [dict(policy='prism', eta=.08, on=.02 + .01 * i, label=f'policy {i}') for i in range(36)]
    return fg.read(made_up(tmp_path_factory.mktemp('many') / 's', dict(GRID, n=8, batch_size=8, entries=[*[dict(policy=p, eta=.08) for p in SLOPES if p != 'backbone'], *others])))

def test_a_picture_names_nine_policies_and_the_rest_is_grey(many):
    "The plane: plots take most of it, the legend little"
    fig = fg.plane(many)
    fig.draw_without_rendering()
    named = [t.get_text() for t in fig.legends[0].get_texts()]
    assert len(named) == fg.NAMED + 1 and named[-1] == '31 others' and {'prism', 'navira-det', 'navira:tau=.2'} <= set(named)
    assert sum(ax.get_window_extent().height for ax in fig.axes) / 2 > .4 * fig.bbox.height > 1.5 * sum(t.get_window_extent().height for t in fig.legends[0].get_texts()) / 3
    colours = [c[0].get_color() for c in fig.axes[0].containers]
    assert sum(c == fg.GREY['color'] for c in colours) == 31 and len({*colours} - {fg.GREY['color'], 'k'}) >= 8

def test_a_policy_looks_the_same_in_every_figure(toy, many):
    "Colour, marker and line, whatever else is drawn: in figures of a store, and in what `navira compare` draws"
    from navira.cli import figure
    import pandas as pd
    looked = lambda fig: {c.get_label(): (c[0].get_color(), c[0].get_marker()) for ax in fig.axes for c in ax.containers if c.get_label().startswith(('prism', 'navira'))}
    rows = [dict(label=n, budget=F, perplexity=9., perplexity_lo=8., perplexity_hi=10., entropy=4., entropy_lo=3.9, entropy_hi=4.1) for n in ('navira-det', 'mine', 'prism', 'navira:tau=.2', 'prism-stochastic') for F in (8, 16)]
    seen = {}
    for fig in (fg.plane(toy), fg.curves(toy), fg.figure3(toy), fg.figure4(toy), fg.plane(many), figure(pd.DataFrame(rows), 'made-up numbers')):
        for k, v in looked(fig).items(): assert seen.setdefault(k, v) == v, k
    assert {'prism', 'navira-det', 'navira:tau=.2'} <= set(seen)

def test_looks_are_told_apart_in_grey():
    "By marker and line: every method of the table, and any nine names beside each other"
    assert len({m.look[1:] for m in fg.METHODS.values()}) == len(fg.METHODS) == len({m.look[:2] for m in fg.METHODS.values()})
    rng = np.random.default_rng(0)
    for _ in range(50):
        names = [*rng.choice(list(fg.METHODS), 4, replace=False), *(f'p{k}' for k in rng.integers(0, 1000, 5))]
        looks = fg.looks(list(dict.fromkeys(names)))
        assert len({(v['marker'], v['ls']) for v in looks.values()}) == len(looks)
        assert all(looks[n] == fg.look(n) for n in looks if n in fg.METHODS)

@pytest.mark.parametrize('name', fg.METHODS)
def test_a_legend_has_what_one_types(name):
    "`policy:setting=value;...`, which is the same policy again, and Python takes its parts"
    m = fg.METHODS[name]
    policy, _, rest = m.typed.partition(':')
    hyper = {k: v == 'True' if v in ('True', 'False') else float(v) if v[0] in '.0123456789' else v for k, v in (s.split('=') for s in rest.split(';') if s)}
    assert (policy, hyper) == (m.policy, m.hyper) and fg.look(name)['label'] == m.typed and fg.method_of(m.typed) == name

def test_made_up_numbers_say_so_in_the_title(toy):
    "As the real ones do not"
    real = replace(toy, record=toy.record | dict(fingerprint='0123abcd'))
    for make in (fg.figure3, fg.figure4, fg.plane, fg.curves):
        assert make(toy).get_suptitle().endswith('(made-up numbers)') and 'made-up' not in make(real).get_suptitle()

def with_runs(r, share):
    "Policies of two passes a step run this share of what they are charged"
    return replace(r, points=[replace(p, rows=p.rows.assign(n_forward=float(p.budget) if p.steps == p.budget else share * p.budget)) for p in r.points])

def test_at_equal_passes_run_one_is_compared_where_it_ran(tmp_path):
    "Perplexities on a straight line in the logarithm of passes: halfway between two budgets, in that logarithm, is halfway between their heights"
    r = fg.read(made_up(tmp_path / 's', dict(GRID, budgets=[64, 128], entries=[dict(policy=p, eta=.08) for p in ('prism', 'navira-det')])))
    y = {(n, F): r.point(n, F).log_perplexity for n in ('PRISM', 'NAVIRA-det') for F in (64, 128)}
    at = fg.at_passes_run('PRISM', 'NAVIRA-det')(with_runs(r, .5**.5))
    assert len(at) == 1      # 64 charged run 45, fewer than PRISM ever does
    np.testing.assert_allclose(next(iter(at.values())), y['NAVIRA-det', 128] - (y['PRISM', 64] + y['PRISM', 128]) / 2, atol=1e-9)
    same = fg.at_passes_run('PRISM', 'NAVIRA-det')(with_runs(r, 1.))
    np.testing.assert_allclose(np.mean(list(same.values()), 0), np.mean(list(fg.against('PRISM', 'NAVIRA-det', 'log_perplexity')(r).values()), 0), atol=1e-9)
    last = fg.passes(with_runs(r, .5**.5)).rows
    assert [row[:3] for row in last] == [(64, '64', '45'), (128, '128', '91'), ('mean', None, None)] and last[0][4] is None and last[1][4] == last[2][4]
    with pytest.raises(fg.Missing, match='equal numbers of passes run'): fg.at_passes_run('PRISM', 'NAVIRA-det')(with_runs(r, .3))

def test_claims_say_how_they_are_measured(toy):
    "In the table of a report, and on the page that leads to it"
    t = fg.claims(toy)
    assert t.head.index('measured as') and [row[t.head.index('measured as')] for row in t.rows] == [c.how for c in fg.CLAIMS]
    for page in ('README.md', 'nbs/numbers.ipynb', 'nbs/13_results.ipynb'):
        text = (Path(__file__).resolve().parent.parent / page).read_text(encoding='utf-8')
        assert 'measured as' in text and fg.CLAIMS[0].how in text and 'does not hold' in text, page

def test_rate_is_twice_eta(tmp_path):
    r = fg.read(made_up(tmp_path / 's', dict(GRID, entries=[*GRID['entries'], dict(policy='navira-onepass-suspects', vary=dict(rate=[.02, .04, .08, .16]))])))
    assert r.eta == .08 and r.point('one pass, suspects', 128).dial == .16 and r.point('one pass, suspects', 128, .01).dial == .02
    assert [p.budget for p in fg.curve(r, 'one pass, suspects', 128)][0] == 128 and fg.curve(r, 'one pass, suspects', 128)[0].dial is None

@pytest.mark.parametrize('entries, said', [
    ([dict(policy='remdm-cap', budgets=[64]), dict(policy='remdm-loop', eta=.02, budgets=[128])], "ReMDM-cap with eta = 0.04, ReMDM-loop with eta = 0.02 (its authors' settings, not scaled with L: a token is corrected 8 times less often"),
    ([dict(policy='remdm-loop', budgets=[128])], "ReMDM-loop with eta = 0.055 (not its authors' settings)")])
def test_table1_says_how_remdm_was_set(tmp_path, entries, said):
    assert said in fg.table1(fg.read(made_up(tmp_path / 's', dict(GRID, entries=entries)))).note

def test_learned_scores_are_compared_with_heuristics_of_as_many_passes():
    for what, passes in {'learned scores': 2, 'learned scores, coupled': 1}.items():
        assert {ex.rule(ex.Cell(m.policy, 8, m.hyper)).predict.passes for n in fg.PAIRS[what] for m in [fg.METHODS[n]]} == {passes}

@pytest.mark.parametrize('name', ['small', 'curves', 'ablations', 'one-gpu'])
def test_what_stands_on_the_plane_corrects_as_much(name):
    "eta is 0.08 wherever a policy has PRISM's eta, unless the dial is what varies; labels are the names of methods"
    for c in ex.cells(s := ex.read_sweep(name)):
        own, it = ex.settled(c), fg.known().get(fg.system(c.policy, c.change, ex.plain(ex.settled(c))))
        varied = any(e.vary and e.label == c.label for e in s.entries)
        if 'on' in own and own.get('n_remask') is None and not varied: assert own.get('eta', own.get('rate', 0) / 2) == .08, c
        assert it is None or c.label in (it, 'ReMDM', c.policy), c
        if c.policy == 'remdm-loop': assert own['eta'] == .02

def test_both_rules_for_separators(toy, tmp_path):
    assert '(separators: once)' in fg.made_with(toy, toy.points)
    text = fg.report(toy.store, tmp_path / 'out', eos='stop', reference='smollm2')[0].read_text()
    assert '(separators: stop)' in text and '(separators: once)' not in text

def test_unknown_names(toy):
    with pytest.raises(KeyError, match="did you mean 'PRISM'"): toy.point('PRSIM', 128)
    with pytest.raises(KeyError, match="did you mean 'stop'"): fg.read(toy.store, eos='stpo')
    with pytest.raises(KeyError, match="did you mean 'smollm2'"): fg.read(toy.store, reference='smolm2')
    with pytest.raises(FileNotFoundError): fg.report(toy.store.folder / 'nowhere', 'out')

def test_terminal_has_the_tables(reported):
    assert 'The claims of the paper' in reported[1] and 'not in this store' in reported[1]


# --- from sampling to report ---------------------------------------------------------------------------------------------------

def test_a_real_store_and_its_small_copy_make_one_report(tmp_path):
    "Sampled, measured, copied, reported by the command line: what is drawn from the copy is what is drawn from the store"
    entries = [dict(policy='prism', eta=.3, budgets=[6], trace=True), *[dict(policy=p, eta=.3, budgets=[12], trace=True) for p in ('navira-det', 'navira')], dict(policy='backbone')]
    store = ex.run(ex.read_sweep(dict(budgets=[6, 12], n=12, batch_size=6, keep=4, metrics=['entropy', 'repetition', 'sets'], device='cpu', entries=entries)), tmp_path / 'store', small_lm(seed=3))
    small = ex.compact(ex.evaluate(store), tmp_path / 'small')
    for folder in (store.folder, small.folder):
        with pytest.raises(SystemExit) as done: main(['report', '--store', str(folder), '--out', str(folder) + '-report'])
        assert not done.value.code
    names = [sorted(f.name for f in tmp_path.glob(f'{s}-report/*')) for s in ('store', 'small')]
    assert names[0] == names[1] and {'table-1.md', 'table-2.tex', 'varied.md', 'report.md'} <= set(names[0])
    assert all((tmp_path / 'store-report' / n).read_bytes() == (tmp_path / 'small-report' / n).read_bytes() for n in names[0])
