"""Seconds and memory of a sampling step: ours, the literal algorithm, and the products alone.

    python benchmarks/sampling.py
    python benchmarks/sampling.py --shape embedded --policies prism --rounds 1
    python benchmarks/sampling.py --shape mdlm-owt --device cuda --dtype bfloat16 --out gpu.csv
    OMP_NUM_THREADS=1 python benchmarks/sampling.py --clock process_time

They run in turn, in a new order each round, so that a slow minute of the machine falls on all of
them. On a CPU in float32 the products alone run twice, PyTorch's own and oneDNN's; the floor is
the faster. The last command measures seconds of the processor, for a machine that is not idle.
nbs/studies/speed.ipynb explains what is compared and shows what was recorded.
"""
import ctypes, multiprocessing, random, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Optional

import pandas as pd
import torch
import torch.nn.functional as F
import typer
from torch import nn
from torch.overrides import TorchFunctionMode

import navira
import navira.peers  # noqa: F401  registers the policies
from navira.base.noise import Noise
from navira.base.parallel import parallel_map
from navira.core import State, step
from navira.diffusion import Denoiser, Forward
from navira.models.dit import MaskedLM
from navira.models.layers import Config
from navira.models.load import HAS_ONEDNN, onednn, products_of, set_products
from navira.sampler.registry import policy

POLICIES = 'backbone,prism,navira-det,navira-piecewise,navira-onepass,remdm-cap,dream-entropy'
ROWS = {'embedded': 64, 'mdlm-owt': 1}     # texts at a time
T = 64


# --- the literal algorithm: everything is computed everywhere, then selected --------------------
def draw_everywhere(draw, logits):    # [N, V] -> [N] tokens
    "The token draw of the public samplers: softmax, sort, cut and Gumbel noise in float64."
    p = (logits.double() / (draw.temperature or 1)).softmax(-1)
    order = torch.arange(p.shape[1], device=p.device).expand(p.shape)
    if draw.top_p < 1:
        p, order = p.sort(dim=-1, descending=True, stable=True)
        keep = p.cumsum(-1) <= draw.top_p
        keep[:, 0] = True
        p = p * keep / (p * keep).sum(-1, keepdim=True)
    if draw.temperature > 0: p = p / -torch.rand_like(p).log()
    return order.gather(1, p.argmax(-1, keepdim=True))[:, 0]


class Literal(Forward):
    "A pass of the public samplers: logits, a draw and quality at every position."

    def __init__(self, inner, rule):
        self.seen_masked, self.draw, self.drawn = inner.seen_masked, rule.draw, None
        self.everywhere = inner.logits(torch.ones_like(inner.seen_masked))
        if rule.reads_quality: self._cached = inner.quality()

    def logits(self, where):
        if self.drawn is None: self.drawn = draw_everywhere(self.draw, self.everywhere)
        row, at = where
        return self.everywhere.view(*self.seen_masked.shape, -1)[row, at]


class Reader(Denoiser):
    "The model that gives the passes of a function of ids."

    def __init__(self, read): self.read = read

    def __call__(self, x): return self.read(x)


# --- the floor: matrix products and attention ---------------------------------------------------
class Products(TorchFunctionMode):
    "Within it, linear layers and attentions are noted, with the first input of each shape."

    def __init__(self):
        super().__init__()
        self.calls, self.inputs = [], {}

    def once(self, i, x):
        if x is None or isinstance(x, nn.Parameter): return x
        return self.inputs.setdefault((i, x.shape, x.dtype), x)

    def __torch_function__(self, f, types, args=(), kwargs=None):
        if f in (F.linear, F.scaled_dot_product_attention):
            self.calls.append((f, [self.once(i, x) for i, x in enumerate(args[:3])]))
        return f(*args, **(kwargs or {}))


def noted(run, model, dtype=torch.float32):
    "The products of `run`: [(function, inputs), ...]."
    chosen = products_of(model)
    set_products(model, 'default')
    with Products() as p: run()
    set_products(model, chosen)
    return [(f, [x if x is None else x.to(dtype) for x in inputs]) for f, inputs in p.calls]


def again(calls, linear=F.linear):
    "Products that were noted, on inputs that lie ready."
    for f, inputs in calls: (linear if f is F.linear else f)(*inputs)


# --- where a step is measured -------------------------------------------------------------------
def network(shape, device):
    "The embedded model, or MDLM's 170 M parameters with random weights of trained spread."
    if shape == 'embedded': return navira.load(device=device)
    torch.manual_seed(0)
    model = MaskedLM(Config(quality_blocks=1))
    # so that a nucleus holds some of the vocabulary, not all of it
    for head, std in (model.backbone, 3), (model.quality, 1):
        nn.init.normal_(head.output_layer.linear.weight, std=std / model.config.hidden_dim**.5)
    return set_products(model.eval().to(device))


class Guess(Forward):
    "Random logits and qualities: a policy's counts lead through a run at no cost."

    def __init__(self, seen_masked): self.seen_masked = seen_masked

    def logits(self, where): return torch.randn(len(where[0]), 8, device=where[0].device)

    def _quality(self): return torch.randn(self.seen_masked.shape, device=self.seen_masked.device)


def midway(rule, model, rows, share):
    "The state before the step at this share of a run."
    torch.manual_seed(0)
    x = torch.full((rows, model.length), model.mask_id, device=model.device)
    st = State.start(x, model.mask_id, T, Noise(0, torch.arange(rows, device=x.device)))
    while st.i < int(share * T): st = step(rule, st, Reader(lambda x: Guess(x == model.mask_id)))
    return st


def ways(rule, model, st, dtype=torch.float32):
    "On a CPU ours and the floors share the rows out among the cores, as `sample` does."
    device = st.x.device
    cores = torch.get_num_threads() if device.type == 'cpu' else 1
    parts = [st[rows] for rows in torch.arange(len(st.x)).chunk(cores)]
    bare = [noted(lambda part=part: step(rule, part, model), model, dtype) for part in parts]

    def share(f, items): return lambda: [*parallel_map(f, items, device)]
    out = dict(ours=share(lambda part: step(rule, part, model), parts),
               literal=lambda: step(rule, st, Reader(lambda x: Literal(model(x), rule))),
               default=share(again, bare))
    if device.type == 'cpu' and dtype == torch.float32 and HAS_ONEDNN:
        out['onednn'] = share(lambda calls: again(calls, onednn), bare)
    return out


# --- measuring ----------------------------------------------------------------------------------
def race(ways, rounds, wait, clock=time.perf_counter):
    "Seconds of each way in each round."
    for f in ways.values(): f()    # the first call is slow
    for i in range(rounds):
        for way in random.Random(i).sample(list(ways), len(ways)):
            wait()
            start = clock()
            ways[way]()
            wait()
            yield dict(round=i, way=way, seconds=clock() - start)


def kib(what):
    lines = dict(line.split(':') for line in Path('/proc/self/status').read_text().splitlines())
    return int(lines[what].split()[0])


def peak(shape, name, way):    # MiB
    "Peak beyond the weights of a step that remasks one token a row. Linux, fresh process."
    with torch.inference_mode():
        model = network(shape, 'cpu')
        active = dict(n_remask=1) if name.startswith(('prism', 'navira')) else {}
        rule = policy(name, **active)
        run = ways(rule, model, midway(rule, model, ROWS[shape], 7/8))[way]
        ctypes.CDLL(None).malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5')    # sets the high-water mark back
        before = kib('VmRSS')
        run()
        return (kib('VmHWM') - before) / 1024


def summary(table):
    "Medians: seconds of a step, ratios (round by round), and peak memory."
    seconds = table.pivot_table('seconds', ['policy', 'round'], 'way', sort=False)
    floors = [way for way in ('default', 'onednn') if way in seconds]
    floor = seconds[min(floors, key=lambda way: seconds[way].median())]
    seconds['ours / floor'] = seconds.ours / floor
    seconds['literal / ours'] = seconds.literal / seconds.ours
    seconds = seconds.groupby('policy', sort=False).median()
    memory = table.dropna(subset='mib').pivot(index='policy', columns='way', values='mib')
    print(f'{" and ".join(floors)}: the products alone; floor: {floor.name}')
    print(seconds.join(memory.add_suffix(', MiB')).round(3).to_string())


def main(shape: str = 'embedded', policies: str = POLICIES, rounds: int = 3, device: str = 'cpu',
         dtype: str = 'float32', clock: str = 'perf_counter', out: Optional[Path] = None):
    wait = torch.cuda.synchronize if device == 'cuda' else lambda: None
    model, rows, fresh = network(shape, device), [], multiprocessing.get_context('spawn')
    for name in policies.split(','):
        autocast = torch.autocast(device, torch.bfloat16, enabled=dtype == 'bfloat16')
        with torch.inference_mode(), autocast:
            for share in (1/8, 3/8, 5/8, 7/8):
                rule = policy(name)
                st = midway(rule, model, ROWS[shape], share)
                times = race(ways(rule, model, st, getattr(torch, dtype)), rounds, wait,
                             getattr(time, clock))
                rows += [dict(policy=name, step=share, **r) for r in times]
        for way in ('ours', 'literal') if device == 'cpu' else ():
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                mib = pool.submit(peak, shape, name, way).result()
                rows.append(dict(policy=name, way=way, mib=mib))
    table = pd.DataFrame(rows)
    if out: table.to_csv(out, index=False)
    print(f'our products: {products_of(model)}')
    summary(table)


if __name__ == '__main__': typer.run(main)
