"What tests of hosts share: a small network as they serve it, and the loop that they run."
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from navira.hosts.servers import policy_step, start
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

def run(rule, x, net, mask_id=MASK, budget=16, seed=3, **how): # net: ids -> logits, qualities
    "The memory at the end, and every text that was read"
    ids, read = x, []
    memory = start(rule, x, mask_id, budget, seed, quality=rule.reads_quality, **how)
    while not memory.done:
        logits, quality = net(ids)
        read.append(ids)
        ids, memory = policy_step(ids, logits, quality if rule.reads_quality else None, memory)
    assert torch.equal(ids, memory.st.x)
    return memory, read

def behind(net, text): # [B, l]
    "The network on a block, behind what stands before it"
    return lambda ids: (net(torch.cat([text, ids], 1)).logits[:, text.shape[1]:], None)
