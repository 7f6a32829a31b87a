"""Kernels of another machine, made of noise: each product ends in other last digits, as it does
with processor, number of threads and shape of the batch. What compares two computed floats bit for
bit fails on some processor, and so it does here. NOISY=0 turns it off."""
import functools, itertools, os
import torch
import torch.nn.functional as F

PRODUCTS = [(F, 'linear'), (F, 'scaled_dot_product_attention'), (torch, 'einsum'),
            *((home, name) for home in (torch, torch.Tensor) for name in ('matmul', 'bmm')),
            (torch.Tensor, '__matmul__')]
SIZE = 2 ** 20
calls = itertools.count()

@functools.cache
@torch.inference_mode(False)
def factors(dtype):
    "`SIZE` times 1 plus or minus one unit in the last place, twice"
    sign = 2 * torch.randint(2, (SIZE,), generator=torch.Generator().manual_seed(0)) - 1
    return (1 + torch.finfo(dtype).eps * sign.to(dtype)).repeat(2)

def noisy(product):
    "A function whose results differ in their last digits from call to call"
    @functools.wraps(product)
    def run(*args, **kw):
        out = product(*args, **kw)
        if type(out) is not torch.Tensor or out.device.type != 'cpu': return out
        if out.dtype not in (torch.float32, torch.float64): return out
        n, start = min(out.numel(), SIZE), next(calls) * 7919 % SIZE
        by = factors(out.dtype)[start:start + n]
        if n < out.numel(): by = by.repeat(-(-out.numel() // n))[:out.numel()]
        return out * by.view(out.shape)
    return run

def install():
    if os.environ.get('NOISY') == '0': return
    for home, name in PRODUCTS: setattr(home, name, noisy(getattr(home, name)))
