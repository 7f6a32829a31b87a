"""CORE against its loop; the page has the kernel of the informed corrector."""
import torch
from hypothesis import given, strategies as hs

from navira.sampler.registry import policy
from helpers.peers import best, everywhere, prompts, run, started
from toys import Tiny

def core_loop(model, x, T, m, k, every, threshold, protect):
    "CORE's loop for one row at temperature 0: ids and passes"
    x, M, n = x.clone(), model.mask_id, 0
    free = (x == M).nonzero()[:, 0].tolist()
    for i in range(T):
        fill = len(free) // T + (i < len(free) % T)
        if not fill: continue
        p, put, n = everywhere(model, x), {}, n + 1
        if every and k and i and i % every == 0 and int(.25 * T) <= i < int(.75 * T):
            two = p.topk(2).values
            C = [j for j in free[:len(free) - protect] if x[j] != M]
            C = best({j: two[j, 1] - two[j, 0] for j in C}, m)
            if C:
                q, n = everywhere(model, x.index_fill(0, torch.tensor(C), M)), n + 1
                lost = {j: -q[j, x[j]] for j in C
                        if q[j].argmax() != x[j] and q[j].max() >= threshold}
                put = {j: q[j].argmax() for j in best(lost, min(k, fill))}
        masks = {j: p[j].max() for j in free if x[j] == M}
        for j in best(masks, fill): put[j] = p[j].argmax()
        for j, v in put.items(): x[j] = v
    return x, n

how = hs.fixed_dictionaries(dict(
    m=hs.integers(1, 6), k=hs.integers(1, 2), every=hs.integers(1, 2),
    threshold=hs.sampled_from([0., .3, .5]), protect=hs.sampled_from([0, 2, 3])))

@given(hs.integers(0, 2**40), hs.integers(3, 8), how)
def test_core_is_its_loop(seed, T, hyper):
    model, x = Tiny(14, 5, seed=seed % 97), prompts(14, 5, seed, 1)
    st = run(policy('core', **hyper), started(x, 5, T, seed), model)
    want, n = core_loop(model, x[0], T, **hyper)
    assert torch.equal(st.x[0], want) and st.n_forward[0] == n
