"""Samplers: parity with the paper's algorithms written a second time, what every run keeps, and
what it asks of the model."""
import itertools

import pytest
import torch

from navira.sampler.prompts import start_ids
from navira.sampling import sample
from helpers.core import CORRECTING, COUPLED, DECOUPLED, FORMS, NAMES, S5, picked
from toys import small_lm, Tiny, transcribed

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
    got = picked(2, tau, S5 * scale, n=2000)
    assert torch.equal(got, torch.tensor([1, 1, 0, 0, 0]).bool().expand(2000, -1))
    # a float32 score is fine
    assert torch.equal(got, picked(2, tau, (S5 * scale).float(), n=2000))


# ---- What is asked of the model


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('batch_size', [1, 4])
def test_only_what_is_needed_is_asked(name, batch_size, one_thread):
    """Logits where tokens are written only, quality only in steps that remask, passes over rows
    with work; all counted"""
    model, hyper = Tiny(12, 4), dict(eta=.1, on=.5) if name in CORRECTING else {}
    out = sample(model, name, 48, 4, trace=True, batch_size=batch_size, **hyper)
    t = out.trace
    assert sum(model.asked) == t.unmasked.sum()
    assert sum(model.rows) == out.n_forward.sum() and (out.n_forward < 48).all()
    opens, takes = t.unmasked.any(2).long(), t.remasked.any(2).long()          # [T, n]
    ran = opens + takes if name in DECOUPLED else opens | takes
    assert torch.equal(out.n_forward, ran.sum(0))
    assert len(model.rated) == sum(int(g.any(1).sum()) for g in takes.split(batch_size, 1))
    assert takes.any() == (name in CORRECTING)


def test_the_trace_holds_the_scores_that_the_step_saw():
    "Quality of the committed tokens in a step that scored the row, NaN in a step that did not"
    model = Tiny(12, 4)
    t = sample(model, 'navira-det', 24, 4, trace=True, eta=.1, on=.4).trace
    for i in range(t.T):
        takes, x = t.remasked[i].any(1), t.x[i].long()
        want = torch.where((x != 4) & takes[:, None], model(x).quality(), torch.nan).float()
        assert torch.equal(t.score[i].isnan(), want.isnan()), f'step {i}'
        assert torch.allclose(t.score[i], want, equal_nan=True)
