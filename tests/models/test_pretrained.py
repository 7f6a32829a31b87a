"""Networks to start from: what they are given, what is kept of them, and what is refused."""
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    LlamaForCausalLM,
)

import navira
from navira.models.families import pretrained
from helpers.sample_api import says

@pytest.fixture(scope='module')
def toys(pytestconfig): # a decoder without a mask, an encoder without a head: random, of 2 layers
    return pytestconfig.rootpath / 'tests' / 'pretrained'

def test_a_decoder_keeps_its_weights_and_gets_one_word_more(toys):
    was, model = LlamaForCausalLM.from_pretrained(toys / 'llama'), pretrained(toys / 'llama')
    now, V = model.net.state_dict(), was.config.vocab_size
    for name, w in was.state_dict().items():
        assert torch.equal(
            now[name][:V] if 'embed' in name or 'lm_head' in name else now[name], w
        ), name
    assert model.mask_id == V and model.tokenizer.token_to_id('<|mask|>') == V
    assert model.net.get_output_embeddings().weight is model.net.get_input_embeddings().weight

def test_a_new_head_is_a_function_of_the_seed(toys):
    def drawn(seed):
        torch.manual_seed(seed)
        return pretrained(toys / 'bert').net.state_dict()
    a, b, c = drawn(0), drawn(0), drawn(1)
    assert all(torch.equal(a[k], b[k]) for k in a) and any(not torch.equal(a[k], c[k]) for k in a)

def test_texts_are_not_cut_off(toys):
    "The tokenizer's file says that a text ends after eight tokens."
    assert (
        json.loads((toys / 'bert' / 'tokenizer.json').read_text())['truncation']['max_length'] == 8
    )
    model = pretrained(toys / 'bert')
    assert len(model.tokenizer.encode('the dog ' * 10).ids) == 20

@pytest.mark.parametrize('shift', [True, False])
def test_saved_it_is_a_folder_like_any_other(toys, tmp_path, shift):
    model = pretrained(toys / 'llama', shift)
    navira.save(model, tmp_path)
    again = navira.load(tmp_path)
    x = torch.tensor([[1, model.mask_id, 2, model.mask_id]])
    with torch.inference_mode():
        assert torch.equal(again(x).logits(x == model.mask_id), model(x).logits(x == model.mask_id))
    assert (again.mask_id, again.shift) == (model.mask_id, shift)

def test_weights_may_be_missing_in_a_head_alone(toys, tmp_path):
    for f in (toys / 'bert').iterdir(): (tmp_path / f.name).write_bytes(f.read_bytes())
    w = load_file(tmp_path / 'model.safetensors')
    del w['encoder.layer.0.output.dense.weight']
    save_file(w, tmp_path / 'model.safetensors', metadata=dict(format='pt'))
    with says(ValueError, '1 in all', 'Missing: bert.encoder.layer.0.output.dense.weight'):
        pretrained(tmp_path)
    with says(ValueError, 'predicts a token where it stands'): pretrained(toys / 'bert', shift=True)

def test_a_masked_language_model_is_as_it_was(pytestconfig):
    folder = pytestconfig.rootpath / 'tests' / 'golden' / 'bert'
    was, model = AutoModelForMaskedLM.from_pretrained(folder).state_dict(), pretrained(folder)
    assert all(torch.equal(w, was[k]) for k, w in model.net.state_dict().items())

@pytest.mark.parametrize('size', [0, 3, 30, 300, -50])
def test_a_damaged_gguf_is_named(toys, tmp_path, size):
    net, path = LlamaForCausalLM.from_pretrained(toys / 'llama'), tmp_path / 'small.gguf'
    write_gguf(pytest.importorskip('gguf'), path, net)
    path.write_bytes(path.read_bytes()[:size])
    with says(ValueError, 'small.gguf', 'not a readable GGUF'): pretrained(path)

TENSORS = dict(
    attn_norm='input_layernorm',
    attn_q='self_attn.q_proj',
    attn_k='self_attn.k_proj',
    attn_v='self_attn.v_proj',
    attn_output='self_attn.o_proj',
    ffn_norm='post_attention_layernorm',
    ffn_gate='mlp.gate_proj',
    ffn_up='mlp.up_proj',
    ffn_down='mlp.down_proj',
)

def write_gguf(gguf, path, net):
    """As llama.cpp writes a Llama: the rows of queries and keys in the order of its rotary
    embedding."""
    c, w = net.config, {k: v.numpy() for k, v in net.state_dict().items()}
    f = gguf.GGUFWriter(path, 'llama')
    f.add_block_count(c.num_hidden_layers); f.add_context_length(c.max_position_embeddings)
    f.add_embedding_length(c.hidden_size); f.add_feed_forward_length(c.intermediate_size)
    f.add_head_count(c.num_attention_heads); f.add_head_count_kv(c.num_key_value_heads)
    f.add_layer_norm_rms_eps(c.rms_norm_eps)
    f.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    f.add_rope_freq_base(10000.); f.add_vocab_size(c.vocab_size)
    words = ['w', '0', 'w0'] + [f'x{i}' for i in range(c.vocab_size - 4)] + ['<eos>']
    f.add_tokenizer_model('gpt2'); f.add_token_list(words); f.add_token_merges(['w 0'])
    f.add_token_types([1] * (len(words) - 1) + [3])
    f.add_eos_token_id(len(words) - 1); f.add_bos_token_id(len(words) - 1)

    def turned(m):
        return (
            m.reshape(c.num_attention_heads, 2, -1, m.shape[1])
            .swapaxes(1, 2)
            .reshape(m.shape)
            .copy()
        )

    f.add_tensor('token_embd.weight', w['model.embed_tokens.weight'])
    f.add_tensor('output_norm.weight', w['model.norm.weight'])
    for i in range(c.num_hidden_layers):
        for theirs, ours in TENSORS.items():
            m = w[f'model.layers.{i}.{ours}.weight']
            f.add_tensor(
                f'blk.{i}.{theirs}.weight', turned(m) if theirs in ('attn_q', 'attn_k') else m
            )
    f.write_header_to_file(); f.write_kv_data_to_file(); f.write_tensors_to_file(); f.close()

def test_a_gguf(toys, tmp_path):
    net = LlamaForCausalLM.from_pretrained(toys / 'llama')
    write_gguf(pytest.importorskip('gguf'), tmp_path / 'small.gguf', net)
    model, V = pretrained(tmp_path / 'small.gguf'), net.config.vocab_size
    for name, w in net.state_dict().items():
        assert torch.equal(model.net.state_dict()[name][:len(w)], w), name
    assert model.mask_id >= V and model.shift and model.eos_ids[0] == V - 1
    assert model.tokenizer.token_to_id('<|mask|>') == model.mask_id
