"""A pass over some positions, against its definition: up to the block of its depth nothing is
replaced, before every later one the positions that do not run are those of the first pass."""
import pytest
import torch
from hypothesis import given, settings, strategies as hs
from torch.utils.flop_counter import FlopCounterMode

from navira.models.kv_cache import KVCache
from navira.models.layers import Config
from navira.models.dit import MaskedLM
from helpers.checkpoints import wrapped
from toys import small_lm

def model(kind):
    if kind == 'dit': return small_lm(n_blocks=3).double()
    if kind == 'gidd': return small_lm(n_blocks=3, p_uniform=.2).double()
    return wrapped(kind, shift=False)

def by_definition(m, x, y, run, depth):
    "Hidden states [B, L, D] of the pass over y, of which `run` runs, after one over x"
    blocks = next(b for b in m.modules() if isinstance(b, torch.nn.ModuleList))
    first = []
    keep = [b.register_forward_pre_hook(lambda _, args: first.append(args[0])) for b in blocks]
    m(x)
    for hook in keep: hook.remove()
    def mixed(i):
        def hook(_, args): return torch.where(run[..., None], args[0], first[i]), *args[1:]
        return blocks[i].register_forward_pre_hook(hook)
    mix = [mixed(i) for i in range(depth + 1 if depth else 0, m.n_blocks)]
    h = m(y).h
    for hook in mix: hook.remove()
    return h

@pytest.mark.parametrize('kind', ['dit', 'gidd', 'llama', 'bert', 'gpt2'])
@settings(max_examples=12)
@given(data=hs.data())
def test_a_part_is_its_definition(kind, data):
    m = model(kind)
    g = torch.Generator().manual_seed(data.draw(hs.integers(0, 99)))
    x = torch.randint(0, 10, (3, 12), generator=g)
    new = torch.rand(3, 12, generator=g) < .2
    y = torch.where(new, (x + 1) % 10, x)       # as many masks: GIDD's network sees their number
    run = new | (torch.rand(3, 12, generator=g) < .2)
    run[0] = False                                     # a row that runs nothing
    depth = data.draw(hs.integers(0, m.n_blocks))
    y[0] = x[0]
    with torch.no_grad():
        cache = KVCache(x)
        first = m.partial(x, cache)
        part = m.partial(y, cache, run, depth)
        wanted = by_definition(m, x, y, run, depth)[run]
        torch.testing.assert_close(part.h[run], wanted, rtol=1e-9, atol=1e-9)
        assert depth + 1 >= m.n_blocks or torch.equal(part.h[~run], first.h[~run])
        assert torch.equal(cache.x, y)

def test_multiply_adds_are_the_share_that_is_charged():
    m = MaskedLM(Config(vocab_size=50, model_length=64, hidden_dim=64, cond_dim=8, n_blocks=4,
                        n_heads=4)).eval()
    x = torch.randint(0, 49, (4, 64), generator=torch.Generator().manual_seed(0))
    def counted(*how):
        with FlopCounterMode(display=False) as flops, torch.no_grad(), \
                torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            out = m.partial(x, *how)
        return flops.get_total_flops(), out
    cache = KVCache(x)
    full, _ = counted(cache)
    run = torch.zeros_like(x, dtype=torch.bool)
    run[:, :16] = run[0, :17] = True                        # rows run different numbers
    for depth in (0, 2):
        part, out = counted(cache, run, depth)
        assert part / full == pytest.approx(float(out.share.mean()), rel=.05)
