"`model.generate(custom_generate=navira.generate_with(...))` on models of transformers."
import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import navira
from navira.hf.generate import generate_with
from navira.models.transformers import wrap
from helpers.sample_api import says

V, M = 40, 39
X = dict(input_ids=torch.tensor([[5, 6, 7, 8], [0, 0, 9, 8]]),
         attention_mask=torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]]))

@pytest.fixture
def net():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, pad_token_id=0, bos_token_id=2, eos_token_id=1)).eval()

def run(net, policy='remdm-conf', inputs=X, new=6, **kw):
    loop = generate_with(policy, 8, mask_id=M)
    return net.generate(**inputs, custom_generate=loop, max_new_tokens=new, **kw)

@pytest.mark.parametrize('policy', ['remdm-conf', 'mask-predict'])
def test_it_writes_what_sample_writes(net, policy):
    "After prompts that are padded on the left"
    out = run(net, policy, eos_token_id=None)
    assert torch.equal(out[:, :4], X['input_ids']) and (out != M).all()
    with pytest.warns(UserWarning): model = wrap(net, mask_id=M)
    model.eos_ids = ()
    prompts = [X['input_ids'][0], X['input_ids'][1, 2:]]
    told = navira.sample(model, policy, 8, prompt=prompts, max_new_tokens=6)
    assert [t[k:k + 6].tolist() for t, k in zip(told.tokens, (4, 2))] == out[:, 4:].tolist()


def test_threads_take_turns(net):
    "The network is as causal afterwards as it was, and each text is that of a single thread."
    causal, alone, told = net(**X).logits, {k: run(net, new=k) for k in (20, 5, 12)}, {}
    def write(k): told[k] = run(net, new=k)
    threads = [threading.Thread(target=write, args=(k,)) for k in alone]
    for t in threads: t.start()
    for t in threads: t.join()
    assert all(torch.equal(told[k], alone[k]) for k in alone)
    torch.testing.assert_close(net(**X).logits, causal)
    assert not hasattr(net.config, 'is_causal')

@pytest.mark.parametrize('odd, name', [
    (dict(repetition_penalty=1.3), 'RepetitionPenaltyLogitsProcessor'),
    (dict(num_beams=2), 'num_beams=2'),
    (dict(output_scores=True, return_dict_in_generate=True), 'output_scores=True'),
    (dict(inputs=dict(X, input_ids=torch.tensor([[5, 6, 7, 8], [0, 0, M, 8]]))), f'token {M}')])
def test_what_has_no_meaning_is_refused_by_name(net, odd, name):
    with says(ValueError, name): run(net, **odd)

def test_padding_may_be_the_mask_and_a_wrong_argument_is_named(net):
    ids = torch.tensor([[5, 6, 7, 8], [M, M, 9, 8]])
    assert torch.equal(run(net, inputs=dict(X, input_ids=ids))[:, :4], ids)
    with says(KeyError, 'policy', "'remdm-conf'"): generate_with('remdm-cond')
    with says(ValueError, 'which token is the mask', 'mask_id='):
        net.generate(**X, custom_generate=generate_with('mdlm', 8), max_new_tokens=6)
