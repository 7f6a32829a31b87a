"""How much memory a run of each policy holds at its peak, in times all logits [B, L, V] of a
batch: `python peak.py NAME ...`, on Linux."""
import sys

import torch

import navira
from navira.diffusion import Denoiser, Forward

n, L, V = 8, 1024, 4096

class Noisy(Forward):
    def __init__(self, x): self.seed, self.seen_masked = int(x.sum()), x == V - 1
    def logits(self, where):
        g = torch.Generator().manual_seed(self.seed)
        out = torch.randn(int(where.sum()), V, generator=g)
        out[:, -1] = -torch.inf
        return out
    def _quality(self): return torch.zeros(self.seen_masked.shape)

class Random(Denoiser):
    mask_id, length, vocab_size, has_quality = V - 1, L, V, True
    def __call__(self, x): return Noisy(x)

def held(key): # MiB
    with open('/proc/self/status') as f: line = next(l for l in f if key in l)
    return int(line.split()[1]) / 1024

if __name__ == '__main__':
    for name in sys.argv[1:]:
        with open('/proc/self/clear_refs', 'w') as f: f.write('5')      # a new peak
        before = held('VmRSS')
        navira.sample(Random(), name, 2, n, progress=False)
        print(name, (held('VmHWM') - before) * 2**20 / (4 * n * L * V))
