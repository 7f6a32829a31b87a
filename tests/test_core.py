"Parity with the paper's algorithms written a second time, and tiny temperatures."
import itertools

import pytest
import torch

from navira.core import TopK
from navira.sampler.prompts import start_ids
from navira.sampling import sample
from helpers.core import COUPLED, FORMS
from helpers.peers import state
from toys import small_lm, transcribed

# ---- Parity with the algorithms written a second time

def same_as_transcribed(model, name, T, n, length, seed, prompt=None, P=.9, **hyper):
    "Number of remasks of a run that is the same both ways"
    schedule, tau = FORMS[name]
    how = dict(length=length, prompt=prompt, trace=True, top_p=P) | schedule | hyper
    out = sample(model, name, T * (1 if name in COUPLED else 2), n, seed, **how)
    x = start_ids(model, n, length, prompt)[0]
    with torch.inference_mode():
        want, taken = transcribed(model, x, T, seed, name in COUPLED, tau, P=P, **hyper)
    assert torch.equal(out.tokens, want) and out.trace.remasked.sum(2).flatten().tolist() == taken
    return sum(taken)

@pytest.mark.parametrize('name', FORMS)
def test_parity_on_a_small_network(name):
    """Lazy logits and idle rows change nothing: tokens and numbers of remasks are those of the
    plain loops, in float32"""
    for M in (10, 0):     # the mask need not be the last id
        prompt = torch.tensor([[1, M, M, M, 3, M, M, M, M, M, 2, M], [M] * 12,
                               [M, 5, 5, M, M, M, M, M, 2, M, M, M]])
        cases = ((12, None, dict(eta=.3, on=0.)), (7, prompt, dict(eta=.9, on=.25, off=.6)),
                 (5, None, dict(eta=.5, P=1.)), (16, prompt, dict(eta=.2)))
        assert sum(same_as_transcribed(small_lm(s, mask_id=M), name, T, 3, 12, s, given, **hyper)
                   for s, (T, given, hyper) in enumerate(cases)) > 10


# ---- The draw at a temperature

@pytest.mark.parametrize('tau, scale', [
    *itertools.product([0., 5e-324, 1e-300, 1e-8], [1e-3, 1., 50., 700.]),
    *((1e-3, s) for s in (1., 50., 700.))])
def test_tiny_temperatures_are_greedy(tau, scale):
    "No overflow, no NaN: the K lowest, in every row"
    score = scale * torch.tensor([1.2, -.3, -.9, -1.4, -2.5], dtype=torch.float64)
    st, every = state([0] * 5, 9, 0, 10, 2000), torch.ones(2000, 5, dtype=torch.bool)
    for s in score, score.float():
        got = TopK(lambda st, p, where: s.expand(2000, -1), 2, tau)(st, None, every)
        assert torch.equal(got, torch.tensor([True] * 2 + [False] * 3).expand(2000, -1))
