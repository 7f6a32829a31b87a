"""What the tests of networks and checkpoints share."""
import json, math, runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from navira.models.checkpoints import on_disk
from navira.models.dit import MaskedLM
from navira.models.layers import Config
from navira.models.load import load

TINY = Config(vocab_size=11, model_length=12, hidden_dim=16, cond_dim=8, n_blocks=2, n_heads=2)
HEAD = replace(TINY, quality_blocks=1)
TIMED = replace(HEAD, p_uniform=.2)
X = torch.tensor([[1, 10, 3, 10, 0], [10, 10, 7, 2, 10]])

def noisy(config=HEAD, seed=0, scale=.3):
    model, g = MaskedLM(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters(): p.copy_(scale * torch.randn(p.shape, generator=g))
    return model.eval()

def same(a, b):
    "Whether two models have the same parameters."
    a, b = dict(a.named_parameters()), dict(b.named_parameters())
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)

def refused(source, *words, error=ValueError, **kwargs):
    "`load` raises `error`, and the message has the words and the name of the source, in one line."
    with pytest.raises(error) as e: load(source, **kwargs)
    text = str(e.value)
    assert type(e.value) is error and '\n' not in text
    for word in (Path(source).name, *words): assert str(word) in text, text

@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad(): yield

def words(*names, **more):
    tok = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(names)} | more, unk_token=names[0])
    )
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return tok

def small_tokenizer(): return words(*'abcdefghij')

TOOL = Path(__file__).parents[2] / 'tools' / 'convert_ckpt.py'

def convert(path, *length):
    "The model that tools/convert_ckpt.py makes of a file, beside it"
    runpy.run_path(str(TOOL))['convert'](path, path.with_suffix(''), *length)
    return load(path.with_suffix(''))

def lightning(path, raw, average, **more):
    ema = dict(decay=.9999, num_updates=3, shadow_params=average)
    torch.save(dict(state_dict=on_disk(raw), ema=ema, epoch=0, global_step=7, **more), path)
    return path

def hub_folder(folder, model, prefix=True, **more):
    "As the repositories of MDLM have it."
    folder.mkdir(parents=True)
    names = 'vocab_size model_length hidden_dim cond_dim n_blocks n_heads dropout'
    config = {k: vars(model.config)[k] for k in names.split()} | dict(
        model_type='mdlm', time_conditioning=False, architectures=['MDLM'],
        auto_map={'AutoModelForMaskedLM': 'x--y.z'})
    (folder / 'config.json').write_text(json.dumps(config | more))
    state = {k if prefix else k.removeprefix('backbone.'): v for k, v in on_disk(model).items()}
    save_file(state, folder / 'model.safetensors', metadata={'format': 'pt'})
    return folder

# --- the network ------------------------------------------------------------------------------

def plain_forward(w, x, n_blocks, n_heads, time=0.):
    """MDLM's forward, from its description (samplers.md 7), full logits; `w`: names (no prefix) ->
    tensors of one type. GIDD's takes a time."""
    def norm(x, weight):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * weight
    def linear(x, name): return x @ w[name + '.weight'].T + w.get(name + '.bias', 0)
    def turn(q):                                                     # [B, L, H, d]
        L, d = q.shape[1], q.shape[-1]
        rate = 10000. ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        a = torch.outer(torch.arange(L), rate).to(q.dtype)
        cos, sin = a.cos()[None, :, None], a.sin()[None, :, None]
        one, two = q[..., :d // 2], q[..., d // 2:]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
    B, L = x.shape
    h = w['vocab_embed.embedding'][x]
    angle = time * 10000. ** (-torch.arange(128, dtype=torch.float64) / 128)      # of MDLM 0
    c = torch.cat([angle.cos(), angle.sin()]).to(h.dtype)[None]
    c = F.silu(linear(F.silu(linear(c, 'sigma_map.mlp.0')), 'sigma_map.mlp.2'))
    for i in range(n_blocks):
        b = f'blocks.{i}.'
        shift1, scale1, gate1, shift2, scale2, gate2 = linear(c, b + 'adaLN_modulation').chunk(
            6, -1
        )
        y = norm(h, w[b + 'norm1.weight']) * (1 + scale1) + shift1
        y = linear(y, b + 'attn_qkv').view(B, L, 3, n_heads, -1)
        q, k, v = turn(y[:, :, 0]), turn(y[:, :, 1]), y[:, :, 2]
        a = torch.einsum('bqhd,bkhd->bhqk', q, k) / math.sqrt(q.shape[-1])
        y = torch.einsum('bhqk,bkhd->bqhd', a.softmax(-1), v).reshape(B, L, -1)
        h = h + gate1 * linear(y, b + 'attn_out')
        y = linear(norm(h, w[b + 'norm2.weight']) * (1 + scale2) + shift2, b + 'mlp.0')
        y = .5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + .044715 * y ** 3)))  # tanh-GELU
        h = h + gate2 * linear(y, b + 'mlp.2')
    shift, scale = linear(c, 'output_layer.adaLN_modulation').chunk(2, -1)
    h = norm(h, w['output_layer.norm_final.weight']) * (1 + scale) + shift
    return linear(h, 'output_layer.linear')

def bare(model):
    state = model.state_dict().items()
    return {k.removeprefix('backbone.'): v for k, v in state if k.startswith('backbone.')}
