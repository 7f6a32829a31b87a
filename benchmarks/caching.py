"""Whole runs with and without a cache, in turn: seconds, products counted, and the audit.

    python benchmarks/caching.py
    python benchmarks/caching.py --rounds 5 --others FILE.py

A Llama of 160.8 M parameters with 126,464 words and random weights (how long a pass takes does not
depend on them; how wrong a cache is does): a prompt of 384 of 512 positions, 64 forward passes.
FILE.py may hold samplers of others, functions `(net, ids, steps) -> ids` named in its `SAMPLERS`.
"""
import random, runpy, time
from pathlib import Path
from typing import Optional

import pandas as pd
import torch
import typer
from transformers import LlamaConfig, LlamaForCausalLM

import navira
import navira.peers  # noqa: F401  registers the policies
from navira.models.load import PRODUCTS, set_products
from navira.models.transformers import LinearQuality

L, GIVEN, FORWARDS = 512, 384, 64
WAYS = dict(none={}, prompt=dict(cache='prompt'), changed=dict(cache='changed'))

POLICIES = 'llada-low-confidence,navira-piecewise,navira-piecewise-changed'


def network():
    torch.manual_seed(0)
    net = LlamaForCausalLM(LlamaConfig(
        vocab_size=126_464, hidden_size=768, intermediate_size=2048, num_hidden_layers=9,
        num_attention_heads=12, max_position_embeddings=1024, tie_word_embeddings=True,
        is_causal=False, bos_token_id=None, eos_token_id=None))
    model = set_products(navira.wrap(net, mask_id=126_463, shift=False))
    model.quality = LinearQuality(768)
    torch.nn.init.normal_(model.quality.linear.weight)
    return model


def main(rounds: int = 3, policies: str = POLICIES, others: Optional[Path] = None,
         out: Optional[Path] = None):
    model = network()
    ids = torch.full((1, L), model.mask_id)
    ids[:, :GIVEN] = torch.randint(model.mask_id, (1, GIVEN),
                                   generator=torch.Generator().manual_seed(0))
    runs = {}
    for name in policies.split(','):
        for way, how in WAYS.items():
            runs[name, way] = lambda name=name, how=how: navira.sample(
                model, name, FORWARDS, prompt=ids, length=L, eos='keep', progress=False,
                **how)
    if others:
        for name, f in runpy.run_path(str(others))['SAMPLERS'].items():
            runs[name, ''] = lambda f=f: f(model.net, ids, FORWARDS)
    rows, projected, head = [], [], model.net.get_output_embeddings()
    head.register_forward_hook(lambda module, args, out: projected.append(args[0].shape[-2]))
    body = sum(p.numel() for p in model.net.base_model.layers.parameters())
    for key, run in runs.items():                      # the first call is slow: it is counted
        projected.clear()
        made = run()
        row = dict(zip(('policy', 'cache'), key))
        if key[1]: row |= dict(passes=float(made.n_forward[0]), logits=sum(projected))
        if key[1]: row['products'] = row['passes'] * L * body + row['logits'] * head.weight.numel()
        rows.append(row | (made.audit.summary() if key[1] and made.audit else {}))
    for i in range(rounds):
        for key in random.Random(i).sample(list(runs), len(runs)):
            start = time.perf_counter()
            runs[key]()
            rows.append(dict(zip(('policy', 'cache'), key), seconds=time.perf_counter() - start))
    table = pd.DataFrame(rows)
    if out: table.to_csv(out, index=False)
    table = table.groupby(['policy', 'cache'], sort=False).median()
    first = table.groupby(level=0)[['seconds', 'products']].transform('first')
    table[['times as fast', 'times fewer products']] = first / table[['seconds', 'products']]
    print(f'products: {PRODUCTS}')
    print(table.drop(columns='products').round(3).to_string())


if __name__ == '__main__': typer.run(main)
