"""The informed corrector: what it redraws, and from what."""
import itertools, math
from collections import Counter

import pytest
import torch

from navira.core import Pass, step
from navira.diffusion import Forward
from navira.peers.correctors import doubts
from navira.peers.revisers import unsure
from navira.registry import policy
from navira.sampling import sample
from helpers.peers import N, state
from helpers.revisers import Raw, conditional, joint4, kernel_row  # noqa: F401
from toys import ACCEPT, REJECT, chi2, counted, planted

@pytest.mark.parametrize('kind', doubts)
def test_a_correction_has_its_row_and_redraws_at_once(joint4, kind):
    x, tau, k = (0, 1, 1, 0), .7, 2
    c = []
    for j in range(4):
        p = conditional(joint4, x, j)
        c.append(math.log(p[x[j]]) - (math.log(p[1 - x[j]]) if kind == 'margin' else 0))
    sets, w = Counter(), {j: math.exp(-c[j] / tau) for j in range(4)}
    for a, b in itertools.permutations(range(4), 2):
        sets[tuple(sorted((a, b)))] += w[a] / sum(w.values()) * w[b] / (sum(w.values()) - w[a])
    expected = kernel_row(joint4, x, sets, clean=False)
    got = step(policy('informed-corrector', k=k, tau=tau, score=kind), state(x, 2, 4, 5, N, seed=7), joint4)
    assert chi2(counted(got.x), expected) > ACCEPT and chi2(counted(got.x), planted(expected)) < REJECT
    # not masked: each is drawn given the other
    assert chi2(counted(got.x), kernel_row(joint4, x, sets, clean=True)) < REJECT
    assert (got.n_forward == 1).all()

def test_it_is_the_predictor_when_nothing_is_redrawn():
    model = Raw(9, 4)
    for schedule in ('cosine', 'linear'):
        for T in (1, 4, 7):
            assert torch.equal(
                sample(model, 'informed-corrector', 2 * T, 30, k=0, schedule=schedule).tokens,
                sample(model, 'mdlm', T, 30, top_p=1., schedule=schedule).tokens,
            )

def test_the_last_prediction_is_corrected_too():
    model = Raw(6, 4)
    out = sample(model, 'informed-corrector', 8, 200, k=3, trace=True)
    assert out.n_steps == 5 and (out.trace.x[4] != 4).all() and (out.trace.x[4] != out.trace.x[5]).any()
    # and there was nothing to correct before the first
    assert not out.trace.remasked[0].any()

def test_the_two_best_are_not_the_margin():
    "p = (.02, .90, .08) with token 0 standing: sure, and wrong"
    logp = torch.tensor([[.39, .40, .21, 0], [.02, .90, .08, 0]]).double()
    class Known(Forward):
        def logits(self, where): return logp.log()[where[0]]
    st = state([[0, 0]], 3, 0, 1)
    p = Pass(lambda x: Known(), st)
    by = {k: f(st, p, st.committed)[0] for k, f in dict(**doubts, two_best=unsure['margin']).items()}
    assert [v.argmax().item() for v in by.values()] == [1, 1, 0]
    assert (by['margin'] > 0).all()                                            # another token would be better at both
    assert by['margin'][1].item() == pytest.approx(math.log(.90 / .02))

@pytest.mark.parametrize(
    'error,name,hyper,text',
    [
        (ValueError, 'informed-corrector', dict(k=-1), 'k=-1'),
        (ValueError, 'informed-corrector', dict(k=1.5), 'k=1.5'),
        (ValueError, 'informed-corrector', dict(tau=-1.), 'tau=-1'),
        (ValueError, 'informed-corrector', dict(tau=math.inf), 'tau=inf'),
        (KeyError, 'informed-corrector', dict(score='margins'), "did you mean 'margin'"),
        (KeyError, 'informed-corrector', dict(schedule='cosin'), "did you mean 'cosine'"),
    ],
)
def test_bad_input_is_named_when_the_policy_is_built(error, name, hyper, text):
    with pytest.raises(error) as e: policy(name, **hyper)
    assert text in str(e.value)
