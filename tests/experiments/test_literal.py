"""The slowest and the fastest that a step can be: what a sampler is measured against."""
import pytest
import torch
from hypothesis import given, strategies as hs

import navira.experiments.literal as speed_literal
from navira.diffusion import drawer
from navira.core import step
from navira.models.dit import multiply_adds
from navira.registry import policies, policy
from navira.experiments.literal import blank, drawn_everywhere, literal_step, POLICIES, products, Whole
from toys import ACCEPT, chi2
from helpers.speed import net  # noqa: F401

# --- the same results -------------------------------------------------------------------------------------------------
# rate with a network of their own; asks for shadows, which no pass has; draws by the text (tests/test_apart.py)
REFUSE = {'token-critic', 'g-star', 'wino', 'apart'}

@pytest.mark.parametrize(
    'name, dtype',
    [*((n, torch.float64) for n in sorted(set(policies()) - REFUSE)), *((n, torch.float32) for n in POLICIES)],
    ids=str,
)
def test_the_literal_algorithm_draws_the_same_tokens(name, dtype):
    model, rule = net(3).to(dtype), policy(name)
    with torch.inference_mode():
        a = b = blank(model, 5, 6, 12, seed=4)
        for _ in range(6):
            a, b = step(rule, a, model), literal_step(rule, b, model, gumbel=False)
            assert torch.equal(a.x, b.x) and torch.equal(a.n_forward, b.n_forward)
            torch.testing.assert_close(
                a.conf.nan_to_num(-1), b.conf.nan_to_num(-1), atol=1e-4, rtol=1e-4, check_dtype=False
            )

@pytest.mark.parametrize(
    'd', [drawer(), drawer(top_p=0.8), drawer(top_p=0.8, keep_crossing=True), drawer(0.5, 0.9), drawer(2.0, 1.0, 3)], ids=str  # noqa: E501
)
def test_gumbel_noise_everywhere_has_the_distribution_of_the_draw(d):
    torch.manual_seed(0)
    logits = torch.tensor([[2., 0., -1., 1.5, .5, -torch.inf]])
    tokens, q = drawn_everywhere(d, logits.expand(40_000, -1))
    exact = {i: p for i, p in enumerate(d.distribution(logits)[0].tolist()) if p}
    counts = dict(zip(*(v.tolist() for v in tokens.unique(return_counts=True))))
    assert set(counts) <= set(exact) and (len(exact) == 1 or chi2(counts, exact) > ACCEPT)
    torch.testing.assert_close(q, torch.tensor([exact[t] for t in tokens.tolist()], dtype=torch.float64))

# --- what is counted --------------------------------------------------------------------------------------------------
@given(hs.integers(1, 3), hs.integers(1, 3), hs.sampled_from([5, 12]))
def test_products_of_a_whole_pass_are_those_counted_by_hand(rows, blocks, L):
    model = net(n_blocks=blocks)
    with torch.inference_mode():
        calls = products(model, lambda: Whole(model(blank(model, rows, 1, L).x), True))
    assert speed_literal.work(calls) == rows * L * sum(multiply_adds(model.config, L).values())
    assert len(calls) == (blocks + 1) * 5 + 2     # qkv, attention, out, two of the MLP; vocabulary and quality
