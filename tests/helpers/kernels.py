"""Kernels of another machine, made of noise: each product ends in other last digits, as it does
with processor, number of threads and shape of the batch. What compares two computed floats bit for
bit fails on some processor, and so it does here."""
import functools, random
import torch
import torch.nn.functional as F

PRODUCTS = [(F, 'linear'), (F, 'scaled_dot_product_attention'), (torch, 'einsum'),
            (torch, 'matmul'), (torch, 'bmm'), *((torch.Tensor, k) for k in ('matmul', 'bmm')),
            (torch.Tensor, '__matmul__')]
SIZE = 2 ** 20
assert_close = torch.testing.assert_close
where = random.Random(0)

@functools.cache
@torch.inference_mode(False)
def factors(dtype):
    "1, or one unit in the last place more or less"
    last = torch.randint(-1, 2, (2 * SIZE,), generator=torch.Generator().manual_seed(0))
    return 1 + torch.finfo(dtype).eps * last.to(dtype)

def noisy(product):
    "A function whose results differ in their last digits from call to call and row to row"
    @functools.wraps(product)
    def run(*args, **kw):
        out = product(*args, **kw)
        full = type(out) is torch.Tensor and out.dtype in (torch.float32, torch.float64)
        if not full or out.device.type != 'cpu': return out
        shape = out.shape[-2:] if out.shape[-2:].numel() <= SIZE else out.shape[-1:]
        start = where.randrange(SIZE)
        return out * factors(out.dtype)[start:start + shape.numel()].view(shape)
    return run

def close(a, b, **kw):
    "`torch.testing.assert_close`; last digits add up over the layers of a network in float32"
    wide = type(a) is torch.Tensor and a.dtype == torch.float32 and 'atol' not in kw
    assert_close(a, b, **(kw | dict(atol=1e-4, rtol=1e-4) if wide else kw))

def install():
    for home, name in PRODUCTS: setattr(home, name, noisy(getattr(home, name)))
    torch.testing.assert_close = close
