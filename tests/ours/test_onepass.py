"""One pass: the distribution of whole runs with stored qualities, what is stored, and what every
run keeps."""
import math
from collections import Counter
from dataclasses import replace
import pytest, torch
from navira.ours.onepass import expected_errors, onepass
from navira.prism import binomial
from navira.registry import policy
from navira.sampling import sample
from helpers.core import state
from toys import (
    ACCEPT, REJECT, Exact, Tiny, binomial_dist, chi2, counted, planted, random_joint, sequential,
    small_lm)

NAMES = [
    'navira-onepass',
    'navira-onepass-quadratic',
    'navira-onepass-sigmoid',
    'navira-onepass-piecewise',
    'navira-onepass-suspects',
]
N = 40_000

def amount(name, v): return {'rate' if name.endswith('suspects') else 'eta': v}


# ---- Distributions

class Memory(Exact):
    """Whole runs: a state is a text and the quality stored of each token; a new one has none, or
    that of its draw"""
    drawn = False

    def first(self, clean, j, token):
        q = self.draw(clean, j)[token]
        return math.log(q / (1 - q)) if self.drawn else None

    def remasked_by(self, r, K, tau):
        s = {j: v for j, v in enumerate(r) if v is not None}
        K = min(K, len(s))
        if not K: return {(): 1.}
        if tau == 0: return {tuple(sorted(sorted(s, key=s.get)[:K])): 1.}
        out = Counter()
        for seq, q in sequential({j: math.exp(-v / tau) for j, v in s.items()},
                                 K).items(): out[tuple(sorted(seq))] += q
        return out

    def after(self, x, r, free, i, T, K, tau, due):
        "{(text, memory): probability} of a step that remasks K"
        out, n = Counter(), sum(x[j] != self.M for j in free)
        for gone, b in self.remasked_by(r, K, tau).items():
            clean, m = (
                tuple(self.M if j in gone else v for j, v in enumerate(x)),
                math.ceil(len(free) * (i + 1) / T) - n + len(gone),
            )
            if not m: out[x, r] += b; continue  # nothing to do: no pass
            kept = tuple(
                None if v == self.M or j not in free else self.quality(clean, j) if due else r[j]
                for j, v in enumerate(clean)
            )
            for y, q in self.filled(clean, clean, [j for j in free if clean[j] == self.M],
                                    m).items():
                out[
                    y,
                    tuple(k if a == c else self.first(clean, j, a) for j,
                          (k, a, c) in enumerate(zip(kept, y, clean))),
                ] += b * q
        return out

    def chain(self, x0, T, eta, on=0., tau=0.):
        dist, free = {(tuple(x0), (None,) * len(x0)): 1.}, [j for j, v in enumerate(x0)
                                                            if v == self.M]
        for i in range(T):
            new = Counter()
            for (x, r), w in dist.items():
                n = sum(x[j] != self.M for j in free)
                for K, a in (binomial_dist(n, len(free), T, eta) if on * T <= i
                             else {0: 1.}).items():
                    for s, q in self.after(x, r, free, i, T, K, tau, on * T <= i + 1
                                           < T).items(): new[s] += w * a * q
            dist = new
        out = Counter()
        for (x, _), w in dist.items(): out[x] += w
        return out

# the second has idle steps, the third a prompt
CHAINS = [
    (4, [2, 2, 2, 2], dict(eta=0.9)),
    (6, [2, 2, 2, 2], dict(eta=0.6, tau=0.7)),
    (5, [2, 1, 2, 2], dict(eta=0.8, on=0.3)),
]

@pytest.mark.parametrize('T, x0, hyper', CHAINS)
def test_a_whole_run_has_its_distribution(T, x0, hyper):
    model = random_joint(4, 2, seed=3, floor=.02)
    dist = Memory(model).chain(x0, T, **hyper)
    got = counted(
        sample(
            model, 'navira-onepass', T, N, batch_size=N, top_p=1.0, prompt=torch.tensor(x0),
            **dict(on=0.0) | hyper
        ).tokens
    )
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
    # NAVIRA with as many steps
    fresh = Exact(model).chain(x0, T, **dict(on=0.) | hyper
                               | dict(tau=lambda u: hyper.get('tau', 0.)))
    assert chi2(got, fresh) < REJECT

def test_with_the_probability_when_drawn_nothing_waits():
    model = random_joint(4, 2, seed=3, floor=.02)
    dists = [Memory(model) for _ in range(2)]; dists[1].drawn = True
    waits, dist = (m.chain([2] * 4, 5, eta=.8) for m in dists)
    got = counted(sample(model, 'navira-onepass', 5, N, batch_size=N, top_p=1., eta=.8, on=0.,
                         score='drawn').tokens)
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT and chi2(got,
                                                                                   waits) < REJECT

# ---- Reductions

@pytest.mark.parametrize('name', NAMES)
def test_without_remasks_it_is_the_backbone(name):
    model = small_lm(4)
    for off in (amount(name, 0.), dict(on=1.)):
        a, b = sample(model, name, 6, 4, 3, **off), sample(model, 'backbone', 6, 4, 3)
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward)
        assert a.n_steps == b.n_steps == 6

@pytest.mark.parametrize('score', ['logit', 'probability'])
@pytest.mark.parametrize('tau', [0., .6])
def test_by_the_qualities_of_a_pass_of_its_own_it_is_navira(tau, score):
    model, hyper = Tiny(12, 5), dict(eta=.4, on=.2, tau=tau, score=score)
    one, two = onepass(**hyper), policy('navira', **hyper)
    fresh = replace(two, remask=replace(one.remask, score=two.remask.score))
    a, b = sample(model, fresh, 16, 6, 1), sample(model, two, 16, 6, 1)
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward)
    assert not torch.equal(sample(model, one, 8, 6, 1).tokens, b.tokens)

# ---- Parts

def rated(s, T=100, i=20, n=5000):
    st = state(torch.where(torch.arange(100) < 20, 1, 9), 9, i, T, n)
    return replace(st, score=torch.as_tensor(s).double().expand(n, 100))

@pytest.mark.parametrize('rate', [0., .01, .3, 1.])
def test_expected_errors_are_the_coins_of_binomial_if_all_is_wrong(rate):
    st = rated(torch.full((100,), -1e9))
    assert torch.equal(expected_errors(rate)(st), binomial(rate)(st))
    assert not expected_errors(rate)(rated(torch.full((100,), math.nan))).any()
    assert not expected_errors(rate)(rated(torch.full((100,), 1e9))).any()
    full = replace(st, x=torch.ones_like(st.x), i=99)
    # nothing at the last step
    assert not expected_errors(rate)(full).any()
