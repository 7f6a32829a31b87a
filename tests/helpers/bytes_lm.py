"""A tokenizer of bytes, and random networks for it."""
import torch
from tokenizers import decoders, models, pre_tokenizers, Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import navira

def byte_tokenizer(merges=()):
    "257 is the mask; `merges` make words from 259 on."
    words = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokens = dict(eos_token='<|end|>', pad_token='<|end|>', mask_token='<|mask|>')
    if merges:
        words |= {a + b: len(words) + i for i, (a, b) in enumerate(merges)}
        tokens = {}
    tok = Tokenizer(models.BPE(words, list(merges)))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok = PreTrainedTokenizerFast(tokenizer_object=tok, **tokens)
    if tokens: tok.add_special_tokens(dict(additional_special_tokens=['<|turn|>']))
    tok.chat_template = "{% for m in messages %}{{ m['content'] }}<|turn|>{% endfor %}"
    return tok

def byte_net(vocab_size=259):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=128, initializer_range=.4,
        bos_token_id=None, eos_token_id=256, is_causal=False)).eval()

def byte_lm(vocab_size=259): return navira.wrap(byte_net(vocab_size), byte_tokenizer(), shift=False)
