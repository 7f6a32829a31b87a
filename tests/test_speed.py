"""The benchmark: what it compares is the same, what it counts is right, and what it has measured is never lost, nor mixed with what is not alike."""
import json, math
from dataclasses import replace
from pathlib import Path
import pytest, torch
import torch.nn.functional as F
from hypothesis import given, strategies as hs
from navira import speed
from navira.denoiser import Config, load, multiply_adds
from navira.diffusion import drawer, n_committed
from navira.prism import step
from navira.sampling import policies, policy
from toys import ACCEPT, chi2

root = Path(__file__).resolve().parent.parent
small = Config(vocab_size=40, model_length=12, hidden_dim=16, cond_dim=8, n_blocks=2, n_heads=2, quality_blocks=1)

def net(seed=0, **kw): return speed.random_network(replace(small, **kw), seed)

# --- the same results -----------------------------------------------------------------------------------------------------
REFUSE = {'token-critic'}      # rates with a network of its own

@pytest.mark.parametrize('name, dtype', [*((n, torch.float64) for n in sorted(set(policies()) - REFUSE)), *((n, torch.float32) for n in speed.POLICIES)], ids=str)
def test_the_literal_algorithm_draws_the_same_tokens(name, dtype):
    model, rule = net(3).to(dtype), policy(name)
    with torch.inference_mode():
        a = b = speed.blank(model, 5, 6, 12, seed=4)
        for _ in range(6):
            a, b = step(rule, a, model), speed.literal_step(rule, b, model, gumbel=False)
            assert torch.equal(a.x, b.x) and torch.equal(a.n_forward, b.n_forward)
            torch.testing.assert_close(a.conf.nan_to_num(-1), b.conf.nan_to_num(-1), atol=1e-4, rtol=1e-4, check_dtype=False)

@pytest.mark.parametrize('d', [drawer(), drawer(p=.8), drawer(p=.8, keep_crossing=True), drawer(.5, .9), drawer(2., 1., 3)], ids=str)
def test_gumbel_noise_everywhere_has_the_law_of_the_draw(d):
    torch.manual_seed(0)
    logits = torch.tensor([[2., 0., -1., 1.5, .5, -torch.inf]])
    tokens, q = speed.drawn_everywhere(d, logits.expand(40_000, -1))
    law = {i: p for i, p in enumerate(d.law(logits)[0].tolist()) if p}
    counts = dict(zip(*(v.tolist() for v in tokens.unique(return_counts=True))))
    assert set(counts) <= set(law) and (len(law) == 1 or chi2(counts, law) > ACCEPT)
    torch.testing.assert_close(q, torch.tensor([law[t] for t in tokens.tolist()], dtype=torch.float64))

@given(hs.integers(1, 7), hs.integers(2, 300), hs.sampled_from([drawer(), drawer(p=.9), drawer(.3, .95, keep_crossing=True), drawer(1., 1., 4), drawer(0., .9)]), hs.integers(0, 99))
def test_rows_in_parts_are_rows(N, V, d, seed):
    "Which token a row draws does not depend on how many rows there are, nor on how they are parted"
    g = torch.Generator().manual_seed(seed)
    logits, u = torch.randn(N, V, generator=g), torch.rand(N, generator=g, dtype=torch.float64)
    object.__setattr__(d := replace(d), 'few', lambda x: x.split(2))
    whole = replace(d)
    (tokens, p), (others, q) = d(logits, u), whole(logits, u)
    assert torch.equal(tokens, others)
    for a, b in ((p, q), (d.ranked(logits), whole.ranked(logits)), (d.law(logits), whole.law(logits))): torch.testing.assert_close(a, b, atol=1e-15, rtol=1e-14)      # a shorter row of zeros adds up in another order

# --- what is counted ------------------------------------------------------------------------------------------------------
@given(hs.integers(1, 3), hs.integers(1, 3), hs.sampled_from([5, 12]))
def test_products_of_a_whole_pass_are_those_counted_by_hand(rows, blocks, L):
    model = net(n_blocks=blocks)
    with torch.inference_mode(): calls = speed.products(model, lambda: speed.Whole(model(speed.blank(model, rows, 1, L).x), True))
    assert speed.work(calls) == rows * L * sum(multiply_adds(model.config, L).values())
    assert len(calls) == (blocks + 1) * 5 + 2     # qkv, attention, out, two of the MLP; vocabulary and quality

@pytest.mark.parametrize('name', speed.POLICIES)
def test_the_floor_makes_the_products_of_the_step(name):
    model = net(model_length=64)
    with torch.inference_mode():
        rule = policy(name)
        for st in speed.midway(rule, speed.blank(model, 3, 16)):
            calls = speed.products(model, lambda: step(rule, st, model))
            again = speed.products(model, speed.floor(calls))
            assert calls and [(f, [tuple(t.shape) for t in a[:2]]) for f, a in calls] == [(f, [tuple(t.shape) for t in a[:2]]) for f, a in again]
            assert speed.work(calls) == speed.work(again)

def test_a_scoring_pass_has_no_vocabulary_and_a_generating_one_few_rows():
    model = net(model_length=64)
    with torch.inference_mode():
        rule = policy('navira-det', n_remask=1)
        st = speed.midway(rule, speed.blank(model, 3, 16), (7/8,))[0]
        calls = speed.products(model, lambda: step(rule, st, model))
    vocabulary = [a[0].shape[0] for f, a in calls if f is F.linear and a[1].shape[0] == small.vocab_size]
    assert vocabulary == [3 * (4 + 1)]      # 64 / 16 positions to open, and the one taken back: once, at those rows
    assert sum(f is F.scaled_dot_product_attention for f, _ in calls) == 2 * 2 + 1      # two passes of two blocks, the head

@pytest.mark.parametrize('name', speed.POLICIES)
def test_never_more_work_than_the_literal_algorithm(name):
    model = net(model_length=64)
    for s in speed.Bench(1).steps(model, speed.Shape(3, 16, small), name):
        assert 0 < s['work'] < s['literal_work'] and len(s['ours']) == len(s['literal']) == len(s['floor']) == 1

@pytest.mark.parametrize('name', ['backbone', 'prism', 'navira-det', 'navira-piecewise', 'navira-onepass'])
def test_midway_has_the_counts_of_the_policy(name):
    model = net(model_length=64)
    for st in speed.midway(policy(name), speed.blank(model, 4, 16)):
        assert (st.committed.sum(1) == (n_committed(64, st.i - 1, 16) if st.i else 0)).all()

def test_random_weights_are_a_function_of_the_seed_and_leave_the_global_state():
    torch.manual_seed(1); a = torch.rand(1); torch.manual_seed(1)
    one, two, three = net(0), net(0), net(1)
    assert torch.equal(torch.rand(1), a)
    w = lambda m: m.backbone.output_layer.linear.weight
    assert torch.equal(w(one), w(two)) and not torch.equal(w(one), w(three))
    with torch.inference_mode(): logits = speed.random_network(replace(small, hidden_dim=256)).forward(torch.randint(39, (4, 12))).logits(torch.ones(4, 12, dtype=torch.bool))
    assert 2 < logits[:, :-1].std() < 4

def hold(n):
    def f():
        x = torch.ones(n // 4); x.add_(1)
        del x
    return speed.peak(f)

@pytest.mark.skipif(not Path('/proc/self/clear_refs').exists(), reason='the high-water mark is Linux\'s')
def test_peak_is_what_was_held_for_a_moment():
    assert math.isclose(speed.in_child(hold, 200 * 2**20), 200 * 2**20, rel_tol=.05)

def test_the_literal_algorithm_holds_more():
    shape = speed.Shape(8, 16, replace(small, vocab_size=20_000, model_length=64))
    ours, literal = (speed.in_child(speed.step_peak, speed.Bench(1), shape, 'navira-piecewise', way) for way in ('ours', 'literal'))
    assert literal > 3 * 8 * 64 * 20_000 * 8 and ours < literal / 3     # three float64 copies of all logits at the very least

# --- what comes out of numbers --------------------------------------------------------------------------------------------
def test_ratios_are_taken_round_by_round():
    s = speed.ratio([2., 9., 8.], [1., 3., 8.])
    assert (s.value, s.low, s.high) == (2., 1., 3.) and str(s) == '2.00 [1.00, 3.00]'
    assert [str(speed.Spread.of([v])) for v in (123., 12.3, .0123, .00005)] == ['123', '12.3', '0.0123', '0.0000500']
    with pytest.raises(ValueError): speed.ratio([1.], [1., 2.])

def test_slope_of_powers():
    for k in (0, .5, 1, 2): assert math.isclose(speed.slope([1, 2, 4, 8], [7 * x**k for x in (1, 2, 4, 8)]), k, abs_tol=1e-12)

def test_contenders_run_in_turn_in_changing_order():
    said = []
    times = speed.interleaved({k: lambda k=k: said.append(k) for k in 'abc'}, 20, cold=('a', 'b', 'c'))
    rounds = [tuple(said[i:i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(r) == list('abc') for r in rounds) and len(set(rounds)) > 2 and {len(t) for t in times.values()} == {20}

def made(**kw): return dict(made=speed.identity(speed.Bench(3)) | kw, parts={})

def test_targets_are_computed():
    found = made()
    steps = lambda ours: [dict(step=i, passes=1, work=10, literal_work=20, ours=[ours] * 3, literal=[12.] * 3, floor=[1.] * 3) for i in range(4)]
    found['parts'] |= {'mdlm-owt/steps/navira-piecewise': steps(1.2), 'mdlm-owt/steps/prism': steps(2.), 'mdlm-owt/memory/prism': dict(ours=10, literal=50), 'mdlm-owt/memory/navira-piecewise': dict(ours=5, literal=100),
                       'mdlm-owt/two_for_one': dict(active=[dict(one=[1.], two=[1.5])] * 2, run=[dict(one=[1.], two=[2.])] * 4), 'embedded/training': dict(tokens=8, precision='no', ours=[2., 1.5], floor=[1., 1.]),
                       'embedded/whole_runs': dict(one=[1.], two=[1.5])}
    rows = {(r[0], r[1]): r[3:] for r in speed.reached(found).rows}
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
    assert len(speed.tables(found)) >= 3 and all(t.markdown() for t in speed.tables(found))
    assert [r[2] for r in speed.reached(made(kind='cuda')).rows][0] == 'at least 15'

def test_the_results_in_the_repository_are_whole():
    found = speed.read_results(root/'benchmarks'/'results'/'cpu.json')
    assert set(found['parts']) == set(speed.parts(speed.Bench(found['made']['rounds']), (*speed.SHAPES, 'scaling'), speed.POLICIES)) and found['made']['rounds'] >= 3
    assert all('-' not in r[3:] for r in speed.reached(found).rows) and speed.beside(found) and speed.growth_drawn(found)

# --- the file of results --------------------------------------------------------------------------------------------------
def test_a_benchmark_that_was_stopped_goes_on(tmp_path, monkeypatch):
    ran = []
    def part(name):
        if name == 'c' and 'stopped' not in ran: ran.append('stopped'); raise KeyboardInterrupt
        ran.append(name); return dict(of=name)
    monkeypatch.setattr(speed, 'parts', lambda b, shapes, which: {k: lambda k=k: part(k) for k in 'abcd'})
    path = tmp_path/'new'/'r.json'
    with pytest.raises(KeyboardInterrupt): speed.benchmark(path)
    assert set(speed.read_results(path)['parts']) == {'a', 'b'}
    said = []
    found = speed.benchmark(path, tell=said.append)
    assert ran == ['a', 'b', 'stopped', 'c', 'd'] and found == json.loads(path.read_text()) and len(said) == 2 and list(path.parent.iterdir()) == [path]

def test_what_was_made_otherwise_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, 'parts', lambda *a: {'a': lambda: 1})
    speed.benchmark(tmp_path/'r.json', speed.Bench(2))
    before = (tmp_path/'r.json').read_bytes()
    with pytest.raises(ValueError, match=r'rounds=2 there and 3 here'): speed.benchmark(tmp_path/'r.json')
    assert (tmp_path/'r.json').read_bytes() == before
    monkeypatch.setattr(speed, 'version', lambda name: '0.0')
    with pytest.raises(ValueError, match=r"torch='.*' there and '0.0' here"): speed.benchmark(tmp_path/'r.json', speed.Bench(2))
    with pytest.raises(FileNotFoundError, match='benchmarks/sampling.py'): speed.read_results(tmp_path/'none.json')
    for text in ('{', '[]', '{"made": 1, "parts": {}}'):
        (tmp_path/'bad.json').write_text(text)
        with pytest.raises(ValueError, match='bad.json'): speed.read_results(tmp_path/'bad.json')

@pytest.mark.parametrize('kw, says', [(dict(rounds=0), 'rounds=0'), (dict(device='gpu'), "'gpu'"), (dict(dtype='bf16'), "did you mean 'bfloat16'")], ids=str)
def test_a_benchmark_that_cannot_be_is_refused(kw, says):
    with pytest.raises((ValueError, KeyError), match=says): speed.Bench(**kw)

def test_a_wrong_shape_or_policy_is_refused_before_any_work(tmp_path):
    for kw, says in ((dict(shapes=['embeded']), "did you mean 'embedded'"), (dict(which=['navira-dett']), "did you mean 'navira-det'")):
        with pytest.raises(KeyError, match=says): speed.benchmark(tmp_path/'r.json', **kw)
    assert not list(tmp_path.iterdir())

def test_every_part_measures(tmp_path, monkeypatch):
    "At a size of nothing: everything that the benchmark is made of, and every table and figure of it"
    tiny = speed.Shape(2, 8, small)
    monkeypatch.setattr(speed, 'SHAPES', dict(embedded=replace(tiny, config=None), tiny=tiny))
    monkeypatch.setattr(speed.Shape, 'network', lambda self, device='cpu': net())
    monkeypatch.setattr(speed, 'in_child', lambda f, *args: f(*args))
    monkeypatch.setattr(speed, 'peak', lambda f, device: (f(), 2**20)[1])       # too little to be seen
    monkeypatch.setattr(speed, 'SCALES', dict(batch=(1, 2), budget=(4, 8)))
    monkeypatch.setattr(speed, 'grown', lambda axis, v: replace(tiny, rows=v) if axis == 'batch' else replace(tiny, steps=v // 2))
    ready = []
    found = speed.benchmark(tmp_path/'r.json', speed.Bench(1, prepare=lambda: ready.append(1)), ('embedded', 'tiny', 'scaling'), ('prism', 'navira-piecewise'), tell=print)
    assert len(ready) == 4 and found['parts'].keys() >= {'tiny/memory/prism', 'embedded/whole_runs', 'scaling/budget/8'}
    for s in ('embedded', 'tiny'):
        spent, rungs = found['parts'][f'{s}/profile'], found['parts'][f'{s}/ladder']
        assert all(spent[k] > 0 for k in speed.KINDS if k != 'copies')
        work = [rungs[k]['work'] for k in speed.LADDER if k in rungs]
        assert work == sorted(work, reverse=True) and rungs['literal']['draws'] > 0
    said = [t.title for t in speed.tables(found)]
    assert len(said) == len(set(said)) == 10 and all(t.markdown() and 'rounds' in t.note for t in speed.tables(found))
    assert speed.growth_drawn(found) and speed.beside(found) and 'four steps' in speed.runs(found)

def test_training_and_its_floor_do_the_same_work():
    model, seen = net(model_length=64), []
    b = speed.Bench(2)
    speed.Bench.race = (lambda was: lambda self, ways, **kw: (seen.append([speed.work(speed.products(model, ways['ours'])) for _ in range(3)]), was(self, ways, **kw))[1])(race := speed.Bench.race)
    try: speed.training(b, model, 1)
    finally: speed.Bench.race = race
    assert len(set(seen[0])) == 1      # one text has few masks or many: the noise must be the same in each round

# --- one minute -----------------------------------------------------------------------------------------------------------
def test_at_hand_with_and_without_a_head():
    for model, names in ((load(), ['prism', 'navira-piecewise']), (net(quality_blocks=None), ['backbone', 'remdm-cap'])):
        t = speed.at_hand(model, limit=0., rows=2)
        assert [r[0] for r in t.rows] == names and all(float(r[2]) > 0 for r in t.rows) and 'texts an hour' in t.head
