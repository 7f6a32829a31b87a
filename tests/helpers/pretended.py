"""A pretended accelerator: within `Pretended()` tensors live on the CPU or on `cuda:0`, and what
CUDA refuses is refused. No GPU is needed. Where a tensor lives is a mark on its storage, as in
PyTorch, so views and parameters have it too. The numbers are computed by the CPU's kernels: what
is tested is that code asks for the right device, not that CUDA computes well. A mode belongs to
its thread: another thread sees all tensors on the CPU. A CPU tensor without dimensions is taken
everywhere, which CUDA does in pointwise functions alone."""
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

CUDA, CPU = torch.device('cuda:0'), torch.device('cpu')
# the indices may be of the CPU
INDEXING = {'__getitem__', '__setitem__', 'index_put', 'index_put_'}
ACROSS = {'copy_', '_has_compatible_shallow_copy_type'}
# What a tensor on the accelerator says of itself
ATTRIBUTES = {Tensor.device.__get__: CUDA, Tensor.is_cuda.__get__: True,
              Tensor.is_cpu.__get__: False}

def key(t):
    "The address of a tensor's storage; 0: not of the CPU's memory"
    with torch._C.DisableTorchFunction():
        return t.untyped_storage()._cdata if t.device.type == 'cpu' else 0

def tensors_in(found):
    if isinstance(found, Tensor): yield found
    elif isinstance(found, (tuple, list, dict)):
        for v in found.values() if isinstance(found, dict) else found: yield from tensors_in(v)

def wanted(device):
    "True: the accelerator, False: the CPU, None: neither"
    if device is None: return None
    return dict(cuda=True, cpu=False).get(torch.device(device).type)

class Pretended(TorchFunctionMode):
    "Within it `cuda:0` is there."

    def __init__(self):
        super().__init__()
        # a weak reference keeps the address from being given out again
        self._there = {}

    def on(self, t):
        "Does it live on the accelerator?"
        held = self._there.get(key(t))
        return held is not None and not held.expired()

    def put(self, t):
        if key(t) and not self.on(t):
            with torch._C.DisableTorchFunction(): storage = t.untyped_storage()
            self._there[storage._cdata] = StorageWeakRef(storage)
        return t

    def place(self, t, there):
        "On the accelerator or the CPU: itself, or a copy"
        if self.on(t) == there or not key(t): return t
        return self.put(t.clone()) if there else t.clone()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, '__name__', '')
        if func in ATTRIBUTES and self.on(args[0]): return ATTRIBUTES[func]
        tensors = [*tensors_in((args, kwargs))]
        if name in ('numpy', '__array__', '__dlpack__') and tensors and self.on(tensors[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to "
                            'copy the tensor to host memory first.')
        want, args, kwargs = self.asked(func, name, args, kwargs)
        there = any(map(self.on, tensors))
        if want is None and there and name not in ACROSS and func != Tensor.data.__set__:
            free = name in INDEXING and self.on(args[0])
            self.check(name, [args[0], *args[2:3]] if free else tensors)
        goes = there if want is None else want
        if name in INDEXING: goes = self.on(args[0])
        out, known = func(*args, **kwargs), set(map(key, tensors))
        if want is not None and isinstance(out, Tensor) and key(out) in known:
            return self.place(out, want)
        for o in tensors_in(out) if goes else ():
            if key(o) not in known: self.put(o)  # else it is a view, and lives where that lives
        return out

    def asked(self, func, name, args, kwargs):
        "The device that a call asks for (None: it does not say), and the call without it"
        if name == 'cpu': return False, args, kwargs
        if func is Tensor.to and isinstance((*args, None)[1], (str, torch.device)):
            return wanted(args[1]), (args[0], CPU, *args[2:]), kwargs
        want = wanted(kwargs.get('device'))
        return want, args, kwargs if want is None else kwargs | dict(device=CPU)

    def check(self, name, tensors):
        "RuntimeError where CUDA would not compute, since these tensors are on two devices"
        large = [t for t in tensors_in(tensors) if t.dim()]
        here = [tuple(t.shape) for t in large if not self.on(t) and t.device.type == 'cpu']
        if here and len(here) < len(large):
            raise RuntimeError('Expected all tensors to be on the same device, but found at least '
                               f'two devices, cuda:0 and cpu! ({name}; of the CPU: {here})')
