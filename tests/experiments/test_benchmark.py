"""One file of results, and the tables made of it."""
import json
from dataclasses import replace
from pathlib import Path

import pytest

import navira.experiments.benchmark as speed_benchmark
import navira.experiments.speed as speed_speed
from navira.models.load import load
from navira.experiments.literal import POLICIES
from navira.experiments.speed import Bench, KINDS, LADDER, Shape
from navira.experiments.benchmark import (
    at_hand, benchmark, beside, growth_drawn, identity, reached, read_results, runs, tables)
from helpers.speed import net, small  # noqa: F401

root = Path(__file__).resolve().parents[2]

def made(**kw): return dict(made=identity(Bench(3)) | kw, parts={})

def test_targets_are_computed():
    found = made()
    steps = lambda ours: [
        dict(step=i, passes=1, work=10, literal_work=20, ours=[ours] * 3, literal=[12.0] * 3, floor=[1.0] * 3)
        for i in range(4)
    ]
    found['parts'] |= {
        'mdlm-owt/steps/navira-piecewise': steps(1.2),
        'mdlm-owt/steps/prism': steps(2.0),
        'mdlm-owt/memory/prism': dict(ours=10, literal=50),
        'mdlm-owt/memory/navira-piecewise': dict(ours=5, literal=100),
        'mdlm-owt/two_for_one': dict(active=[dict(one=[1.0], two=[1.5])] * 2, run=[dict(one=[1.0], two=[2.0])] * 4),
        'embedded/training': dict(tokens=8, precision='no', ours=[2.0, 1.5], floor=[1.0, 1.0]),
        'embedded/whole_runs': dict(one=[1.0], two=[1.5]),
    }
    rows = {(r[0], r[1]): r[3:] for r in reached(found).rows}
    assert rows['navira-piecewise, speed over the literal algorithm', 'mdlm-owt'] == ['10.0', 'yes']
    assert rows['navira-piecewise, time over the floor', 'mdlm-owt'] == ['1.20', 'yes']
    assert rows['any of the seven, time over the floor', 'mdlm-owt'] == ['2.00', 'no']
    assert rows['navira-piecewise, memory of a literal step over ours, beyond weights', 'mdlm-owt'] == ['20.0', 'yes']
    assert rows['any of the seven, memory of a literal step over ours', 'mdlm-owt'] == ['5.00', 'no']
    assert rows['active two-pass step over a one-pass step with scores', 'mdlm-owt'] == ['1.50', 'yes']
    assert rows['the same, from four steps of each', 'mdlm-owt'] == ['2.00', 'no']
    assert rows['training step over its floor', 'embedded'] == ['1.75 [1.50, 2.00]', 'cannot tell']
    assert rows['default two-pass run over a one-pass run of as many steps', 'embedded'] == ['1.50', 'yes']
    assert rows['navira-piecewise, time over the floor', 'embedded'] == ['-', '-']
    assert len(tables(found)) >= 3 and all(t.markdown() for t in tables(found))
    assert [r[2] for r in reached(made(kind='cuda')).rows][0] == 'at least 15'

def test_the_results_in_the_repository_are_whole():
    found = read_results(root/'benchmarks'/'results'/'cpu.json')
    assert set(found['parts']) == set(
        speed_benchmark.parts(Bench(found['made']['rounds']), (*speed_speed.SHAPES, 'scaling'), POLICIES)
    )
    assert found['made']['rounds'] >= 3
    assert all('-' not in r[3:] for r in reached(found).rows)
    assert beside(found)
    assert growth_drawn(found)

# --- the file of results ----------------------------------------------------------------------------------------------
def test_a_benchmark_that_was_stopped_goes_on(tmp_path, monkeypatch):
    ran = []
    def part(name):
        if name == 'c' and 'stopped' not in ran: ran.append('stopped'); raise KeyboardInterrupt
        ran.append(name); return dict(of=name)
    monkeypatch.setattr('navira.experiments.benchmark.parts', lambda b, shapes, which: {k: lambda k=k: part(k) for k in 'abcd'})  # noqa: E501
    path = tmp_path/'new'/'r.json'
    with pytest.raises(KeyboardInterrupt): benchmark(path)
    assert set(read_results(path)['parts']) == {'a', 'b'}
    said = []
    found = benchmark(path, tell=said.append)
    assert ran == ['a', 'b', 'stopped', 'c', 'd']
    assert found == json.loads(path.read_text())
    assert len(said) == 2
    assert list(path.parent.iterdir()) == [path]

def test_what_was_made_otherwise_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr('navira.experiments.benchmark.parts', lambda *a: {'a': lambda: 1})
    benchmark(tmp_path/'r.json', Bench(2))
    before = (tmp_path/'r.json').read_bytes()
    with pytest.raises(ValueError, match=r'rounds=2 there and 3 here'): benchmark(tmp_path/'r.json')
    assert (tmp_path/'r.json').read_bytes() == before
    monkeypatch.setattr('navira.experiments.benchmark.version', lambda name: '0.0')
    with pytest.raises(ValueError, match=r"torch='.*' there and '0.0' here"):
        benchmark(tmp_path / 'r.json', Bench(2))
    with pytest.raises(FileNotFoundError, match='benchmarks/sampling.py'): read_results(tmp_path/'none.json')
    for text in ('{', '[]', '{"made": 1, "parts": {}}'):
        (tmp_path/'bad.json').write_text(text)
        with pytest.raises(ValueError, match='bad.json'): read_results(tmp_path/'bad.json')

def test_a_wrong_shape_or_policy_is_refused_before_any_work(tmp_path):
    for kw, says in (
        (dict(shapes=['embeded']), "did you mean 'embedded'"),
        (dict(which=['navira-dett']), "did you mean 'navira-det'"),
    ):
        with pytest.raises(KeyError, match=says): benchmark(tmp_path/'r.json', **kw)
    assert not list(tmp_path.iterdir())

def test_every_part_measures(tmp_path, monkeypatch):
    "At a size of nothing: everything that the benchmark is made of, and every table and figure of it"
    tiny = Shape(2, 8, small)
    for room in ('navira.experiments.speed', 'navira.experiments.benchmark'):
        monkeypatch.setattr(f'{room}.SHAPES', dict(embedded=replace(tiny, config=None), tiny=tiny))
    monkeypatch.setattr(Shape, 'network', lambda self, device='cpu': net())
    for room in ('navira.experiments.speed', 'navira.experiments.benchmark'):
        monkeypatch.setattr(f'{room}.in_child', lambda f, *args: f(*args))
    monkeypatch.setattr('navira.experiments.speed.peak', lambda f, device: (f(), 2**20)[1])       # too little to be seen  # noqa: E501
    for room in ('navira.experiments.speed', 'navira.experiments.benchmark'):
        monkeypatch.setattr(f'{room}.SCALES', dict(batch=(1, 2), budget=(4, 8)))
    monkeypatch.setattr(
        'navira.experiments.speed.grown', lambda axis, v: replace(tiny, rows=v) if axis == 'batch' else replace(tiny, steps=v // 2)  # noqa: E501
    )
    ready = []
    found = benchmark(
        tmp_path / 'r.json',
        Bench(1, prepare=lambda: ready.append(1)),
        ('embedded', 'tiny', 'scaling'),
        ('prism', 'navira-piecewise'),
        tell=print,
    )
    assert len(ready) == 4 and found['parts'].keys() >= {'tiny/memory/prism', 'embedded/whole_runs', 'scaling/budget/8'}
    for s in ('embedded', 'tiny'):
        spent, rungs = found['parts'][f'{s}/profile'], found['parts'][f'{s}/ladder']
        assert all(spent[k] > 0 for k in KINDS if k != 'copies')
        work = [rungs[k]['work'] for k in LADDER if k in rungs]
        assert work == sorted(work, reverse=True) and rungs['literal']['draws'] > 0
    said = [t.title for t in tables(found)]
    assert len(said) == len(set(said)) == 10 and all(t.markdown() and 'rounds' in t.note for t in tables(found))
    assert growth_drawn(found) and beside(found) and 'four steps' in runs(found)

# --- one minute -------------------------------------------------------------------------------------------------------
def test_at_hand_with_and_without_a_head():
    for model, names in (
        (load(), ['prism', 'navira-piecewise']),
        (net(quality_blocks=None), ['backbone', 'remdm-cap']),
    ):
        t = at_hand(model, limit=0., rows=2)
        assert [r[0] for r in t.rows] == names and all(float(r[2]) > 0 for r in t.rows) and 'texts an hour' in t.head
