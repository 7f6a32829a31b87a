"""What the tests of peers share: a state that stands anywhere, and a model that always says the same."""
import math
from dataclasses import replace

import torch

from navira.base.noise import Noise
from navira.core import State
from navira.diffusion import Forward

N = 50_000

def state(x, M, i, T, n=None, seed=0, conf=None, fixed=None):
    x = torch.as_tensor(x)
    x = x.expand(n, -1) if n else x
    st = State.start(torch.full_like(x, M), M, T, Noise(seed, torch.arange(len(x))))
    conf = st.conf if conf is None else torch.as_tensor(conf, dtype=torch.float64).expand(x.shape)
    return replace(st, x=x, i=i, conf=conf, fixed=st.fixed if fixed is None else torch.as_tensor(fixed).expand(x.shape))

class Fixed:
    "A model that says token 0 with probability .7, 1 with .3, whatever it sees; mask 2"
    mask_id = 2
    def __init__(self, L=1): self.length = L
    def __call__(self, x): return FixedForward(x == 2)

class FixedForward(Forward):
    def __init__(self, masked): self.seen_masked = masked
    def logits(self, where): return torch.tensor([math.log(.7), math.log(.3), -math.inf]).expand(int(where.sum()), 3)
