"""The benchmark: what it compares is the same, what it counts is right, and what it has measured is never lost, nor
mixed with what is not alike."""
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as hs

import navira.experiments.literal as speed_literal
import navira.experiments.speed as speed_speed
from navira.diffusion import drawer, n_committed
from navira.core import step
from navira.registry import policy
from navira.experiments.literal import blank, floor, POLICIES, products
from navira.experiments.speed import (
    Bench, interleaved, midway, random_network, ratio, Shape, slope, Spread, step_peak, training)
from helpers.speed import net, small  # noqa: F401

def hold(n):
    def f():
        x = torch.ones(n // 4); x.add_(1)
        del x
    return speed_speed.peak(f)

@given(
    hs.integers(1, 7),
    hs.integers(2, 300),
    hs.sampled_from(
        [drawer(), drawer(top_p=0.9), drawer(0.3, 0.95, keep_crossing=True), drawer(1.0, 1.0, 4), drawer(0.0, 0.9)]
    ),
    hs.integers(0, 99),
)
def test_rows_in_parts_are_rows(N, V, d, seed):
    "Which token a row draws does not depend on how many rows there are, nor on how they are parted"
    g = torch.Generator().manual_seed(seed)
    logits, u = torch.randn(N, V, generator=g), torch.rand(N, generator=g, dtype=torch.float64)
    object.__setattr__(d := replace(d), 'few', lambda x: x.split(2))
    whole = replace(d)
    (tokens, p), (others, q) = d(logits, u), whole(logits, u)
    assert torch.equal(tokens, others)
    # a shorter row of zeros adds up in another order
    for a, b in ((p, q), (d.ranked(logits), whole.ranked(logits)), (d.distribution(logits), whole.distribution(logits))):  # noqa: E501
        torch.testing.assert_close(a, b, atol=1e-15, rtol=1e-14)

@pytest.mark.parametrize('name', POLICIES)
def test_the_floor_makes_the_products_of_the_step(name):
    model = net(model_length=64)
    with torch.inference_mode():
        rule = policy(name)
        for st in midway(rule, blank(model, 3, 16)):
            calls = products(model, lambda: step(rule, st, model))
            again = products(model, floor(calls))
            assert calls
            assert [(f, [tuple(t.shape) for t in a[:2]]) for f, a in calls] == [
                (f, [tuple(t.shape) for t in a[:2]]) for f, a in again
            ]
            assert speed_literal.work(calls) == speed_literal.work(again)

def test_a_scoring_pass_has_no_vocabulary_and_a_generating_one_few_rows():
    model = net(model_length=64)
    with torch.inference_mode():
        rule = policy('navira-det', n_remask=1)
        st = midway(rule, blank(model, 3, 16), (7/8,))[0]
        calls = products(model, lambda: step(rule, st, model))
    vocabulary = [a[0].shape[0] for f, a in calls if f is F.linear and a[1].shape[0] == small.vocab_size]
    assert vocabulary == [3 * (4 + 1)]      # 64 / 16 positions to unmask, and the one remasked: once, at those rows
    # two passes of two blocks, the head
    assert sum(f is F.scaled_dot_product_attention for f, _ in calls) == 2 * 2 + 1

@pytest.mark.parametrize('name', POLICIES)
def test_never_more_work_than_the_literal_algorithm(name):
    model = net(model_length=64)
    for s in Bench(1).steps(model, Shape(3, 16, small), name):
        assert 0 < s['work'] < s['literal_work'] and len(s['ours']) == len(s['literal']) == len(s['floor']) == 1

@pytest.mark.parametrize('name', ['backbone', 'prism', 'navira-det', 'navira-piecewise', 'navira-onepass'])
def test_midway_has_the_counts_of_the_policy(name):
    model = net(model_length=64)
    for st in midway(policy(name), blank(model, 4, 16)):
        assert (st.committed.sum(1) == (n_committed(64, st.i - 1, 16) if st.i else 0)).all()

def test_random_weights_are_a_function_of_the_seed_and_leave_the_global_state():
    torch.manual_seed(1); a = torch.rand(1); torch.manual_seed(1)
    one, two, three = net(0), net(0), net(1)
    assert torch.equal(torch.rand(1), a)
    w = lambda m: m.backbone.output_layer.linear.weight
    assert torch.equal(w(one), w(two)) and not torch.equal(w(one), w(three))
    with torch.inference_mode():
        logits = (
            random_network(replace(small, hidden_dim=256))
            .forward(torch.randint(39, (4, 12)))
            .logits(torch.ones(4, 12, dtype=torch.bool))
        )
    assert 2 < logits[:, :-1].std() < 4

@pytest.mark.skipif(not Path('/proc/self/clear_refs').exists(), reason='the high-water mark is Linux\'s')
def test_peak_is_what_was_held_for_a_moment():
    assert math.isclose(speed_speed.in_child(hold, 200 * 2**20), 200 * 2**20, rel_tol=.05)

def test_the_literal_algorithm_holds_more():
    shape = Shape(8, 16, replace(small, vocab_size=20_000, model_length=64))
    ours, literal = (
        speed_speed.in_child(step_peak, Bench(1), shape, 'navira-piecewise', way) for way in ('ours', 'literal')
    )
    assert literal > 3 * 8 * 64 * 20_000 * 8
    assert ours < literal / 3     # three float64 copies of all logits at the very least

# --- what comes out of numbers ----------------------------------------------------------------------------------------
def test_ratios_are_taken_round_by_round():
    s = ratio([2., 9., 8.], [1., 3., 8.])
    assert (s.value, s.low, s.high) == (2., 1., 3.) and str(s) == '2.00 [1.00, 3.00]'
    assert [str(Spread.of([v])) for v in (123., 12.3, .0123, .00005)] == ['123', '12.3', '0.0123', '0.0000500']
    with pytest.raises(ValueError): ratio([1.], [1., 2.])

def test_slope_of_powers():
    for k in (0, 0.5, 1, 2):
        assert math.isclose(slope([1, 2, 4, 8], [7 * x**k for x in (1, 2, 4, 8)]), k, abs_tol=1e-12)

def test_contenders_run_in_turn_in_changing_order():
    said = []
    times = interleaved({k: lambda k=k: said.append(k) for k in 'abc'}, 20, cold=('a', 'b', 'c'))
    rounds = [tuple(said[i:i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(r) == list('abc') for r in rounds)
    assert len(set(rounds)) > 2
    assert {len(t) for t in times.values()} == {20}

@pytest.mark.parametrize(
    'kw, says',
    [(dict(rounds=0), 'rounds=0'), (dict(device='gpu'), "'gpu'"), (dict(dtype='bf16'), "did you mean 'bfloat16'")],
    ids=str,
)
def test_a_benchmark_that_cannot_be_is_refused(kw, says):
    with pytest.raises((ValueError, KeyError), match=says): Bench(**kw)

def test_training_and_its_floor_do_the_same_work():
    model, seen = net(model_length=64), []
    b = Bench(2)
    Bench.race = (
        lambda was: (
            lambda self, ways, **kw: (
                seen.append([speed_literal.work(products(model, ways['ours'])) for _ in range(3)]),
                was(self, ways, **kw),
            )[1]
        )
    )(race := Bench.race)
    try: training(b, model, 1)
    finally: Bench.race = race
    assert len(set(seen[0])) == 1      # one text has few masks or many: the noise must be the same in each round
