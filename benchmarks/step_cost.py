"""What a step costs outside the network: kernels, waits and processor time.

    python benchmarks/step_cost.py
    python benchmarks/step_cost.py --texts 16 --policies navira,p2 --out after.csv
    python benchmarks/step_cost.py --device cuda     # counts what CUDA calls a wait, too

The network is a stub that looks logits up, so that what is left is the sampler; beside the policies
run plain loops of three published rules. `launches`: tensor operations that compute something; on
an accelerator each is a kernel, of about 5 us of host time however small its tensors. `waits`: how
often the host must know a number (a read, an item, a masked index), so that the accelerator runs
dry. Both are exact, the same on every machine. Times are of one thread, medians of five: processor
seconds, or on a GPU those of a clock. nbs/studies/speed.ipynb shows what was recorded.
"""
import sys, time, warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

import pandas as pd
import torch
import torch.nn.functional as F
import typer
from torch.utils._python_dispatch import TorchDispatchMode

import navira
from navira.base import parallel
from navira.base.noise import Noise
from navira.diffusion import Denoiser, Forward
from navira.sampling import states

V = 1000
LENGTH, STEPS = 256, 64
WAITS = {'_local_scalar_dense', 'nonzero', 'masked_select', 'is_nonzero', 'equal'}


class Table(Forward):
    "Logits and qualities by token, looked up."

    def __init__(self, model, x): self.model, self.x, self.seen_masked = model, x, x == V

    def logits(self, where): return self.model.table[self.x[where]]

    def _quality(self): return self.model.qualities[self.x]


class Stub(Denoiser):
    mask_id, vocab_size, has_quality = V, V + 1, True

    def __init__(self, length=LENGTH, device='cpu'):
        g = torch.Generator().manual_seed(0)
        self.length, self.device = length, device
        self.table = (torch.randn(V + 1, V + 1, generator=g) * 2).to(device)
        self.table[:, V] = -torch.inf
        self.qualities = torch.randn(V + 1, generator=g).to(device)

    def __call__(self, x): return Table(self, x)


class Count(TorchDispatchMode):
    "Within it, what is launched and how often the host waits."
    launches = waits = 0

    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        name = f.overloadpacket.__name__
        views = [r.alias_info and not r.alias_info.is_write for r in f._schema.returns]
        if not any(views) and name not in ('detach', 'lift_fresh'):
            self.launches += 1
            mask = name.startswith('index') and isinstance(args[1], (list, tuple)) and any(
                t is not None and t.dtype == torch.bool for t in args[1])
            self.waits += mask or name in WAITS
        return f(*args, **(kwargs or {}))


@contextmanager
def counted():
    "A `Count` that also counts what `navira` reads: on an accelerator a copy, and a wait."
    count, real = Count(), getattr(parallel, 'read', None)
    def read(a):
        count.launches, count.waits = count.launches + 1, count.waits + 1
        with torch._C._DisableTorchDispatch(): return real(a)
    users = [m for m in list(sys.modules.values()) if real and vars(m).get('read') is real]
    for m in users: m.read = read
    # without gradients, but not in inference mode: there, calls that do nothing are dispatched too
    try:
        with torch.no_grad(), count: yield count
    finally:
        for m in users: m.read = real


# --- plain loops ---------------------------------------------------------------------------------
def due(i, length, steps): return length // steps + (i < length % steps)

def llada(model, x, steps):
    "LLaDA's published rule: the surest first, temperature 0."
    for i in range(steps):
        mask, logits = x == V, model.table[x]
        tokens = logits.double().argmax(-1)
        sure = F.softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]
        sure = torch.where(mask, sure, -torch.inf)
        write = torch.zeros_like(mask)
        for row in range(len(x)):
            write[row, sure[row].topk(due(i, x.shape[1], steps)).indices] = True
        x[write] = torch.where(mask, tokens, x)[write]

def prism(model, x, steps, remasks=2):
    "PRISM's step: random order, so many remasks, nucleus .9."
    for i in range(steps):
        k, mask, logits, q = due(i, x.shape[1], steps), x == V, model.table[x], model.qualities[x]
        n = min(remasks, int((~mask)[0].sum())) if i < steps - 1 else 0
        at = torch.rand(x.shape, device=x.device).masked_fill(~mask, -1).topk(k, -1).indices
        p = F.softmax(logits.gather(1, at[..., None].expand(-1, -1, V + 1)).double(), -1)
        v, ids = p.sort(-1, descending=True)
        v = v.masked_fill(v.cumsum(-1) - v > .9, 0)
        token = ids.gather(-1, torch.multinomial(v.flatten(0, 1), 1).view(len(x), -1, 1))[..., 0]
        if n: x.scatter_(1, q.masked_fill(mask, torch.inf).topk(n, largest=False).indices, V)
        x.scatter_(1, at, token)

def dream(model, x, steps, temperature=.2, top_p=.95):
    "Dream's published rule: least entropy first, of the tempered nucleus of every mask."
    for i in range(steps):
        mask = x == V
        logits = model.table[x[mask]] / temperature
        v, ids = logits.sort(descending=True)
        cut = F.softmax(v, -1).cumsum(-1) > top_p
        cut[..., 1:] = cut[..., :-1].clone()
        cut[..., 0] = False
        gone = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, ids, cut)
        p = F.softmax(logits.masked_fill(gone, torch.finfo(logits.dtype).min), -1)
        token = torch.multinomial(p, 1)[:, 0]
        sure = torch.full(x.shape, -torch.inf, device=x.device)
        sure[mask] = (p * (p + 1e-10).log()).sum(-1)
        at = sure.topk(due(i, x.shape[1], steps), -1).indices
        new = torch.full_like(x, V)
        new[mask] = token
        x.scatter_(1, at, new.gather(1, at))

LOOPS = {f'plain loop: {f.__name__}': f for f in (llada, prism, dream)}


# --- measuring -----------------------------------------------------------------------------------
def run(name, texts=1, length=LENGTH, steps=STEPS, model=None):
    "A whole run of a policy or a loop."
    model = model or Stub(length)
    x, noise = (a.to(model.device) for a in (torch.full((texts, length), V), torch.arange(texts)))
    if name in LOOPS: return LOOPS[name](model, x, steps)
    for _ in states(navira.policy(name), model, x, steps, Noise(0, noise)): pass

def counts(name, texts=1, length=LENGTH, steps=STEPS): # launches and waits a step
    model = Stub(length)
    with torch.no_grad(): run(name, texts, length, steps, model)    # the first run also imports
    with counted() as c: run(name, texts, length, steps, model)
    return c.launches / steps, c.waits / steps

def milliseconds(name, texts=1, rounds=5, device='cpu'): # a step
    model, took, gpu = Stub(device=device), [], device == 'cuda'
    clock = time.perf_counter if gpu else time.process_time
    with torch.inference_mode():
        for _ in range(1 + rounds):
            start = clock()
            run(name, texts, model=model)
            if gpu: torch.cuda.synchronize()
            took.append((clock() - start) / STEPS * 1e3)
    return sorted(took[1:])[rounds // 2]

def synchronised(name, texts=1): # how often CUDA itself says that a step made the host wait
    with warnings.catch_warnings(record=True) as said, torch.inference_mode():
        warnings.simplefilter('always')
        model = Stub(device='cuda')
        torch.cuda.set_sync_debug_mode('warn')
        try: run(name, texts, model=model)
        finally: torch.cuda.set_sync_debug_mode('default')
    return sum('synchroniz' in str(w.message) for w in said) / STEPS

def logits_are_enough(name):
    "Is the policy one that a stub can run?"
    rule = navira.policy(name)
    return not rule.step.needs and 'critic' not in navira.sampler.registry.signature(
        navira.policies()[name])

def main(texts: int = 1, policies: str = '', device: str = 'cpu', out: Optional[Path] = None):
    torch.set_num_threads(1)
    names = policies.split(',') if policies else [*filter(logits_are_enough, navira.policies())]
    rows = []
    for name in [*LOOPS, *names]:
        launches, waits = counts(name, texts)
        rows.append((name, texts, launches, waits, milliseconds(name, texts, device=device)))
        said = f' CUDA says {synchronised(name, texts):.2f}' if device == 'cuda' else ''
        print(f'{name:26} {launches:6.1f} launches {waits:5.2f} waits{said} {rows[-1][-1]:7.2f} ms',
              flush=True)
    table = pd.DataFrame(rows, columns=['policy', 'texts', 'launches', 'waits', 'ms'])
    if out: table.round(3).to_csv(out, index=False)


if __name__ == '__main__': typer.run(main)
