"""What the tests of networks and checkpoints share."""
import json, runpy, warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
    ModernBertConfig, ModernBertForMaskedLM, RobertaConfig, RobertaForMaskedLM)

from navira.models.checkpoints import on_disk
from navira.models.dit import MaskedLM
from navira.models.layers import Config
from navira.models.load import load
from navira.models.transformers import wrap

TINY = Config(vocab_size=11, model_length=12, hidden_dim=16, cond_dim=8, n_blocks=2, n_heads=2)
HEAD = replace(TINY, quality_blocks=1)
TIMED = replace(HEAD, p_uniform=.2)

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

def lightning(path, raw, average):
    ema = dict(decay=.9999, num_updates=3, shadow_params=average)
    torch.save(dict(state_dict=on_disk(raw), ema=ema, epoch=0, global_step=7), path)
    return path

def hub_folder(folder, model, **more):
    "As the repositories of MDLM have it."
    folder.mkdir(parents=True)
    names = 'vocab_size model_length hidden_dim cond_dim n_blocks n_heads dropout'
    config = {k: vars(model.config)[k] for k in names.split()} | dict(
        model_type='mdlm', time_conditioning=False, architectures=['MDLM'],
        auto_map={'AutoModelForMaskedLM': 'x--y.z'})
    (folder / 'config.json').write_text(json.dumps(config | more))
    save_file(on_disk(model), folder / 'model.safetensors', metadata={'format': 'pt'})
    return folder

# --- networks of the transformers library -----------------------------------------------------

V, M = 61, 60
SIZE = dict(vocab_size=V, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=40)
ENDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
NETS = {
    'llama': lambda: LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, **SIZE, **ENDS)),
    'gpt2': lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=V, n_positions=40, n_embd=16, n_layer=3, n_head=2, bos_token_id=1,
        eos_token_id=2)),
    'bert': lambda: BertForMaskedLM(BertConfig(**SIZE)),
    'roberta': lambda: RobertaForMaskedLM(RobertaConfig(**SIZE, pad_token_id=1)),
    'modernbert': lambda: ModernBertForMaskedLM(ModernBertConfig(
        cls_token_id=1, sep_token_id=2, local_attention=8, global_attn_every_n_layers=2, **SIZE,
        **ENDS))}

def wrapped(name, **how):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')                  # they were never adapted
        return wrap(NETS[name]().double().eval(), mask_id=M, **how)
