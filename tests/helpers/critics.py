"""What the tests of critics share: one without an opinion, and one that remembers."""
import torch

from navira.diffusion import Denoiser, Forward

class Flat(Forward):
    def __init__(self, x): self.seen_masked = torch.zeros_like(x, dtype=torch.bool)
    def _quality(self): return torch.zeros(self.seen_masked.shape, dtype=torch.float64)


class Seen(Denoiser):
    "Passes on, and remembers what it was shown"
    def __init__(self, inner):
        self.inner, self.mask_id, self.length, self.shown = inner, inner.mask_id, inner.length, []
    def __call__(self, x): self.shown.append(x); return self.inner(x)
