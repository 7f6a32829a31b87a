"Apart: whole runs and single steps against their distributions; what every step keeps."
import math
import pytest, torch
from hypothesis import given, settings, strategies as hs
from torch import tensor
from navira.ours.apart import Apart, Penalised
from navira.core import Pass, pick
from navira.diffusion import Denoiser, Forward
from navira.sampler.exact import Chain
from navira.sampler.joint import random_joint
from navira.sampler.registry import policy
from helpers.peers import state

NAN = math.nan
plain = dict(penalty=0., share=0., top_p=1., sure=1.)


class Given(Forward):
    "A pass whose logits are given: [B, L, V]"
    def __init__(self, table): self.table = table
    def logits(self, where): return self.table[where]

class Says(Denoiser):
    def __init__(self, table): self.table = table
    def __call__(self, x): return Given(self.table[:len(x)])

# ---- distributions


def test_what_was_a_guess_is_drawn_again_from_what_is_left():
    model = random_joint(3, 3)
    chain = Chain(model)
    rule = policy('apart', **plain | dict(share=1., sure=.5))
    cases = {(.9, .3, .8): [1], (.2, .3, .8): [0, 1], (.5, .6, .49): [2], (.1, .1, .1): [0, 1, 2]}
    for conf, sites in cases.items():
        expected = chain.row(chain.redraw(sites), (0, 2, 1))
        assert expected.holds(chain.land(rule, (0, 2, 1), 1, 4, conf=conf)), sites


@pytest.mark.parametrize('alpha', [0., .5, 1., 3.])
def test_penalty_is_a_power_of_the_count(alpha):
    x = tensor([[0, 0, 0, 1, 9, 9], [2, 2, 9, 9, 9, 1]])
    where = x == 9
    logits = torch.randn(int(where.sum()), 10, generator=torch.Generator().manual_seed(0),
                         dtype=torch.float64)
    c = tensor([[3, 1, 0], [0, 1, 2]])
    got = Penalised(penalty=alpha).penalised(logits, x, where)[:, :9].softmax(-1)
    for row, at in enumerate(where.nonzero()[:, 0].tolist()):
        w = logits[row, :9].softmax(-1).clone() # 9 is the mask
        w[:3] /= (1. + c[at].double()) ** alpha
        torch.testing.assert_close(got[row], w / w.sum(), atol=1e-12, rtol=1e-12)


# ---- where


@settings(deadline=None)
@given(hs.integers(0, 10**6), hs.sampled_from([0, 1, 2, 4]), hs.integers(0, 3), hs.booleans())
def test_a_step_writes_its_share_and_repeats_only_if_it_must(seed, strands, i, sharp):
    g = torch.Generator().manual_seed(seed)
    B, L, V, n = 3, 9, 5, 4
    table = torch.randn(B, L, V + 1, generator=g, dtype=torch.float64) * (6 if sharp else .1)
    table[..., V] = -1e9
    x = torch.where(torch.rand(B, L, generator=g) < .6, V, torch.randint(V, (B, L), generator=g))
    back = torch.rand(B, L, generator=g) < .2           # had a token, and was remasked
    st = state(x, V, i, n, conf=torch.where(back | (x != V), .7, NAN))
    rule = Apart(strands, .9)
    p = Pass(Says(table), st, Penalised(penalty=0.))
    S = pick(rule, st, p, st.masked)
    token = torch.full((B, L), -1).masked_scatter(st.masked, p.drawn(st.masked)[0])
    given_p = table.softmax(-1).gather(2, token.clamp(min=0)[..., None])[..., 0]
    for b in range(B):
        free = set(st.masked[b].nonzero().flatten().tolist())
        new = {j for j in free if math.isnan(st.conf[b, j])}
        due = len(free - new) + -(-len(new) // (n - i))
        before, sure = 1., set()
        for j in sorted(free, key=lambda j: -given_p[b, j]):   # random numbers: no two are tied
            if before > .9: sure.add(j)
            before *= given_p[b, j]
        wrote = set(S[b].nonzero().flatten().tolist())
        assert sure <= wrote and len(wrote) >= min(due, len(free)) and len(wrote - sure) <= due
        if i == n - 1: assert wrote == free
        distinct = len({int(token[b, j]) for j in free})
        unsure = [int(token[b, j]) for j in wrote - sure]
        # there are as many different tokens
        if due <= distinct: assert len(unsure) == len(set(unsure))
