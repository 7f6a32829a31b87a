"""A pass over some positions, against its definition: up to the block of its depth nothing is
replaced, before every later one the positions that do not run are those of the first pass."""
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as hs
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
    ModernBertConfig, ModernBertForMaskedLM)

from navira.models.kv_cache import KVCache
from navira.models.layers import Config
from navira.models.dit import MaskedLM
from navira.models.transformers import TransformersLM
from navira.prism import backbone
from navira.sampling import sample
from toys import small_lm

SIZE = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32,
            vocab_size=11)
NETS = dict(
    llama=lambda: LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **SIZE)),
    bert=lambda: BertForMaskedLM(BertConfig(**SIZE)),
    gpt2=lambda: GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=16, n_layer=3, n_head=4)))

def model(kind):
    torch.manual_seed(0)
    if kind == 'dit': return small_lm(n_blocks=3).double()
    if kind == 'gidd': return small_lm(n_blocks=3, p_uniform=.2).double()
    net = NETS[kind]().double()
    with torch.no_grad():
        for p in net.parameters(): p.copy_(.3 * torch.randn_like(p))
    return TransformersLM(net, 10).eval()

def blocks(m): return next(b for b in m.modules() if isinstance(b, torch.nn.ModuleList))

def by_definition(m, x, y, run, depth):
    "Hidden states [B, L, D] of the pass over y, of which `run` runs, after one over x"
    inputs, handles = {}, []
    def keep(i): return lambda _, args: inputs.update({i: args[0]})
    def mix(i):
        def hook(_, args):
            if depth and i <= depth: return None
            return (torch.where(run[..., None], args[0], inputs[i]), *args[1:])
        return hook
    for make, ids in ((keep, x), (mix, y)):
        handles = [b.register_forward_pre_hook(make(i)) for i, b in enumerate(blocks(m))]
        h = m(ids).h
        for a in handles: a.remove()
    return h

@pytest.mark.parametrize('kind', ['dit', 'gidd', *NETS])
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
    depth = data.draw(hs.integers(0, 3))
    y[0] = x[0]
    with torch.no_grad():
        cache = KVCache(x)
        first = m.partial(x, cache)
        torch.testing.assert_close(first.h, m(x).h)
        part = m.partial(y, cache, run, depth)
        wanted = m(y).h if run.all() else by_definition(m, x, y, run, depth)
        torch.testing.assert_close(part.h[run], wanted[run], rtol=1e-9, atol=1e-9)
        assert depth > 1 or torch.equal(part.h[~run], first.h[~run])
        assert torch.equal(cache.x, y)
        full = min(depth + 1, 3) if depth else 0
        shares = (full + (3 - full) * run.sum(1) / 12) / 3
        torch.testing.assert_close(part.share, shares.double())

def test_ragged_rows_read_their_own_text_only():
    m = model('llama')
    x = torch.randint(0, 10, (2, 9), generator=torch.Generator().manual_seed(1))
    x[1, 6:] = -1
    run = torch.zeros_like(x, dtype=torch.bool)
    run[:, [1, 4]] = True
    with torch.no_grad():
        both, alone = KVCache(x), KVCache(x[1:, :6])
        m.partial(x, both)
        m.partial(x[1:, :6], alone)
        a = m.partial(x, both, run).h[1, :6]
        torch.testing.assert_close(a, m.partial(x[1:, :6], alone, run[1:, :6]).h[0])

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
    for size in (4, 16, 40):
        for depth in (0, 2):
            run = torch.zeros_like(x, dtype=torch.bool)
            run[:, :size] = True
            run[0, size] = True                         # rows run different numbers
            part, out = counted(cache, run, depth)
            assert part / full == pytest.approx(float(out.share.mean()), rel=.05)

def test_a_network_that_sees_a_window_only_runs_whole_texts():
    net = ModernBertForMaskedLM(ModernBertConfig(
        **SIZE, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2))
    model = TransformersLM(net.eval(), 10)
    assert model.n_blocks is None
    with pytest.warns(UserWarning, match='runs whole texts only'):
        policy = replace(backbone(), decoupled=True, depth=0)
        sample(model, policy, 8, 2, length=6, progress=False)
    with pytest.raises(ValueError, match='runs whole texts only'):
        sample(model, 'backbone', 8, 2, length=6, cache='changed')
