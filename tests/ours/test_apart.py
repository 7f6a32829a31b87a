"Apart: what every step keeps. The page has the distributions."
import math

import torch
from hypothesis import given, strategies as hs

from navira.core import Pass, pick
from navira.ours.apart import Apart, Penalised
from helpers.peers import at_masks, state
from toys import Tiny

@given(hs.integers(0, 10**6), hs.sampled_from([0, 1, 2, 4]), hs.integers(0, 3),
       hs.sampled_from([.1, 3.]))
def test_a_step_writes_its_share_and_repeats_only_if_it_must(seed, strands, i, sharp):
    g = torch.Generator().manual_seed(seed)
    L, V, n = 9, 5, 4
    model = Tiny(L, V, seed=seed % 97, sharp=sharp)
    x = torch.where(torch.rand(1, L, generator=g) < .6, V, torch.randint(V, (1, L), generator=g))
    back = torch.rand(1, L, generator=g) < .2           # had a token, and was remasked
    st = state(x, V, i, n, conf=torch.where(back | (x != V), .7, math.nan))
    p = Pass(model, st, Penalised(penalty=0.))
    S = pick(Apart(strands, .9), st, p, st.masked)[0]
    free = st.masked[0].nonzero()[:, 0].tolist()
    token = dict(zip(free, p.drawn(st.masked)[0].tolist()))
    chance = {j: q[token[j]].item() for j, q in at_masks(model, x[0]).items()}
    new = [j for j in free if st.conf[0, j].isnan()]
    due = len(free) - len(new) + -(-len(new) // (n - i))
    before, sure = 1., set()
    for j in sorted(free, key=lambda j: -chance[j]):   # random numbers: no two are tied
        if before > .9: sure.add(j)
        before *= chance[j]
    wrote = set(S.nonzero()[:, 0].tolist())
    assert sure <= wrote and len(wrote) >= min(due, len(free)) and len(wrote - sure) <= due
    if i == n - 1: assert wrote == {*free}
    if due > len({*token.values()}): return
    unsure = [token[j] for j in wrote - sure]           # there are as many different tokens
    assert len(unsure) == len(set(unsure))
