"`model.generate(custom_generate=FOLDER)` of the transformers library."

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import navira
from navira.hosts import FOLDER

X = dict(input_ids=torch.tensor([[5, 6, 7, 8], [0, 0, 9, 8]]),
         attention_mask=torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]]))

@pytest.fixture(scope='module')
def net():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, pad_token_id=0, bos_token_id=2, eos_token_id=1)).eval()

@pytest.mark.parametrize('policy, hyper', [('remdm-conf', dict(eta=.5)), ('wino', {}),
                                           ('fast-dllm', dict(block_length=4, cache='changed'))])
def test_a_folder_writes_what_the_function_writes(net, policy, hyper):
    "Processors and the padding of prompts go through; inputs may be given by place"
    loop = navira.generate_with(policy, 8, seed=3, mask_id=39, shift=False, **hyper)
    # shadows do not go through processors
    how = dict(max_new_tokens=6, suppress_tokens=None if policy == 'wino' else [5, 6, 7])
    given = dict(custom_generate=FOLDER, trust_remote_code=True, policy=policy, budget=8, seed=3,
                 mask_id=39, shift=False, hyper=hyper)
    want = net.generate(**X, custom_generate=loop, **how)
    assert torch.equal(want, net.generate(**X, **given, **how))
    assert torch.equal(want, net.generate(X['input_ids'], attention_mask=X['attention_mask'],
                                          **given, **how))
