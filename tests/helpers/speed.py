"""What the tests of speed share."""
from dataclasses import replace

from navira.models.layers import Config
from navira.experiments.speed import random_network

small = Config(vocab_size=40, model_length=12, hidden_dim=16, cond_dim=8, n_blocks=2, n_heads=2, quality_blocks=1)

def net(seed=0, **kw): return random_network(replace(small, **kw), seed)
