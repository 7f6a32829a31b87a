"""Small networks with random weights, spread as trained ones are."""
import torch
from torch import nn

from navira.models.dit import MaskedLM
from navira.models.layers import Config

SMALL = dict(vocab_size=40, model_length=12, hidden_dim=16, cond_dim=8, n_blocks=2, n_heads=2,
             quality_blocks=1)

def random_network(seed=0, **sizes):
    config = Config(**SMALL | sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MaskedLM(config)
        heads = [(model.backbone, 3), (model.quality, 1)]
        for head, std in heads:
            if head is None: continue
            weight = head.output_layer.linear.weight
            nn.init.normal_(weight, std=std / config.hidden_dim**.5)
    return model.eval()
