"""The bound of a model whose entropy is known."""
import math

import numpy as np

from navira.training.bound import evaluate_nelbo
from helpers.training import one_thread, tiny_model  # noqa: F401

def test_nelbo_of_a_uniform_model():
    model = tiny_model().eval()
    e = evaluate_nelbo(model, np.random.default_rng(0).integers(0, 11, (500, 10)))
    assert abs(e.value - math.log(11)) < 3 * e.se and e.n == 500
