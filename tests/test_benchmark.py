"""benchmarks/sampling.py: the literal algorithm draws the same tokens as our step."""
import importlib.util
from pathlib import Path

import pytest
import torch

from toys import small_lm
from navira.base.noise import Noise
from navira.core import State, step
from navira.sampler.registry import policy

script = Path(__file__).parents[1]/'benchmarks'/'sampling.py'
spec = importlib.util.spec_from_file_location('benchmark_script', script)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)

@pytest.mark.parametrize('name', ['prism', 'navira-det', 'remdm-cap', 'llada-low-confidence'])
def test_logits_on_demand_give_the_tokens_that_all_logits_give(name):
    model, rule = small_lm(seed=3, vocab_size=40).double(), policy(name)
    x = torch.full((5, 12), model.mask_id)
    a = b = State.start(x, model.mask_id, 6, Noise(4, torch.arange(5)))
    with torch.inference_mode():
        for _ in range(6):
            a = step(rule, a, model)
            b = step(rule, b, bench.Reader(lambda x: bench.Literal(model(x), rule)))
            assert torch.equal(a.x, b.x) and torch.equal(a.n_forward, b.n_forward)
            torch.testing.assert_close(a.conf, b.conf, equal_nan=True, check_dtype=False)
