"""A pretended accelerator: within `Pretended()` tensors live on the CPU or on `cuda:0`, and what
CUDA refuses is refused. No GPU is needed. Where a tensor lives is a mark on its storage, as in
PyTorch, so views and parameters have it too. The numbers are computed by the CPU's kernels: what
is tested is that code asks for the right device, not that CUDA computes well. A mode belongs to
its thread: another thread sees all tensors on the CPU."""

from collections.abc import Iterator
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")

# Functions of tensors element by element. CUDA takes a CPU tensor without dimensions in these, and
# in no others.
POINTWISE = {
    f"{side}{name}{end}"
    for name in "add sub mul div truediv floordiv mod pow and or xor lshift rshift eq ne lt le gt "
                "ge".split()
    for side, end in (("__", "__"), ("__r", "__"), ("__i", "__"))
} | {
    name + end
    for end in ("", "_")
    for name in """add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or
    bitwise_xor maximum minimum fmax fmin where clamp clip clamp_min clamp_max lerp addcmul addcdiv masked_fill fill copysign atan2 hypot xlogy logaddexp""".split()  # noqa: E501
}
# the indices may be of the CPU
INDEXING = {"__getitem__", "__setitem__", "index_put", "index_put_"}
ACROSS = {"copy_", "set_", "load_state_dict", "_has_compatible_shallow_copy_type", "type_as"}


class Pretended(TorchFunctionMode):
    "Within it `cuda:0` is there."

    def __init__(self):
        super().__init__()
        # a weak reference keeps the address from being given out again
        self._there: dict[int, StorageWeakRef] = {}

    # --- where a tensor lives
    def on(self, t: Tensor) -> bool:
        "Does it live on the accelerator?"
        held = self._there.get(_key(t))
        return held is not None and not held.expired()

    def put(self, t: Tensor) -> Tensor:
        if _key(t) and not self.on(t):
            with torch._C.DisableTorchFunction():
                storage = t.untyped_storage()
            self._there[storage._cdata] = StorageWeakRef(storage)
        return t

    def place(self, t: Tensor, there: bool) -> Tensor:
        "On the accelerator or the CPU: itself, or a copy."
        if self.on(t) == there or not _key(t):
            return t
        return self.put(t.clone()) if there else t.clone()

    # --- what torch is asked
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if func in ATTRIBUTES and self.on(args[0]):
            return ATTRIBUTES[func]
        tensors = [*_tensors((args, kwargs))]
        there = [self.on(t) for t in tensors]
        if name in ("numpy", "__array__", "__dlpack__") and there and there[0]:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."  # noqa: E501
            )
        if func is Tensor.cuda:
            return self.place(args[0], True)
        want, args, kwargs = self.asked(func, name, args, kwargs)
        if want is None and any(there):
            self.check(func, name, args, kwargs, tensors, there)
        goes = any(there) if want is None else want
        if name in INDEXING:
            goes = self.on(args[0])
        g = kwargs.get("generator")
        if g is not None and goes != (g.device.type == "cuda"):
            raise RuntimeError(
                f"Expected a '{'cuda' if goes else 'cpu'}' device type for generator but found "
                f"'{g.device.type}'"
            )
        out, known = func(*args, **kwargs), {_key(t) for t in tensors}
        if want is not None and isinstance(out, Tensor) and _key(out) in known:
            return self.place(out, want)
        for o in _tensors(out) if goes else ():
            if _key(o) not in known:
                self.put(o)  # else it is a view, and lives where that lives
        return out

    def asked(self, func, name: str, args: tuple, kwargs: dict) -> tuple:
        """The device that a call asks for (True: the accelerator, None: it does not say), and
        the call without it."""
        if name == "cpu":
            return False, args, kwargs
        if func is Tensor.type_as:
            return self.on(args[1]), args, kwargs
        if func is Tensor.to:
            other = next((a for a in (*args[1:2], kwargs.get("other")) if isinstance(a, Tensor)),
                         None)
            if other is not None:
                return self.on(other), args, kwargs
            if len(args) > 1 and isinstance(args[1],
                                            (str, torch.device, int)) and not isinstance(args[1],
                                                                                         bool):
                if (want := _there(args[1])) is not None:
                    return want, (args[0], CPU, *args[2:]), kwargs
        if kwargs.get("device") is not None and (want := _there(kwargs["device"])) is not None:
            return want, args, kwargs | dict(device=CPU)
        return None, args, kwargs

    def check(self, func, name: str, args: tuple, kwargs: dict, tensors: list, there: list) -> None:
        "RuntimeError where CUDA would not compute, since some of these tensors are on the CPU."
        here = [t for t, on in zip(tensors, there) if not on and t.device.type == "cpu"]
        if not here or name in ACROSS or func == Tensor.data.__set__:
            return
        if name in INDEXING:
            if self.on(args[0]):
                wrong = [v for v in _written(args) if not self.on(v) and v.dim()
                         and not _basic(args)]
            elif all(
                t.dim() == 0 and not t.is_floating_point() and t.dtype != torch.bool
                for t in _indices(args)
                if self.on(t)
            ):
                wrong = [v for v in _written(args) if self.on(v) and v.dim() and not _basic(args)]
            else:
                raise RuntimeError("indices should be either on cpu or on the same device as the "
                                   "indexed tensor (cpu)")
        else:
            inplace = (
                isinstance(args[0] if args else None, Tensor)
                and not self.on(args[0])
                and (
                    name.startswith("__i")
                    and name in POINTWISE
                    and name != "__invert__"
                    or name.endswith("_")
                    and not name.endswith("__")
                )
            )
            out = [t for t in _tensors(kwargs.get("out")) if not self.on(t)]
            wrong = here if inplace or out or name not in POINTWISE else [t for t in here
                                                                          if t.dim()]
        if wrong:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                # noqa: E501
                f"cuda:0 and cpu! ({name}; of the CPU: {[tuple(t.shape) for t in wrong]})"
            )


# 0: no storage, as of a sparse tensor, or not of this computer's memory
def _key(t: Tensor) -> int:
    try:
        with torch._C.DisableTorchFunction():
            return t.untyped_storage()._cdata if t.device.type == "cpu" else 0
    except (NotImplementedError, RuntimeError):
        return 0


def _there(device) -> bool | None:  # None: neither
    kind = "cuda" if isinstance(device, int) else torch.device(device).type
    return {"cuda": True, "cpu": False}.get(kind)


def _tensors(found) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, (tuple, list, dict)):
        for v in found.values() if isinstance(found, dict) else found:
            yield from _tensors(v)


# What a tensor on the accelerator says of itself.
ATTRIBUTES = {Tensor.device.__get__: CUDA, Tensor.is_cuda.__get__: True,
              Tensor.is_cpu.__get__: False}


def _indices(args: tuple) -> list[Tensor]:
    return [*_tensors(args[1])]


def _written(args: tuple) -> list[Tensor]:
    return [t for t in args[2:3] if isinstance(t, Tensor)]


def _basic(args: tuple) -> bool:
    return not _indices(args)  # slices: a copy, which goes across devices
