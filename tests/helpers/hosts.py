"What tests of hosts share: a small network as they serve it."
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from navira.models.transformers import bidirectional

V, MASK, EOS = 40, 39, 1

def served():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=24, initializer_range=.5, pad_token_id=0,
                         eos_token_id=EOS)
    net = bidirectional(LlamaForCausalLM(config)).eval().requires_grad_(False)
    def unlikely(module, inputs, out): out.logits[..., MASK] = -30   # hosts would write it
    net.register_forward_hook(unlikely)
    return net
