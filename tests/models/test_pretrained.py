"""Networks to start from: what they are given, what is kept of them, and what is refused."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, LlamaForCausalLM

import navira
from navira.models.families import pretrained
from navira.models.products import set_products
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

@pytest.mark.parametrize('shift', [True, False])
def test_saved_it_is_a_folder_like_any_other(toys, tmp_path, shift):
    model = pretrained(toys / 'llama', shift)
    navira.save(model, tmp_path)
    again = set_products(navira.load(tmp_path), 'default')
    x = torch.tensor([[1, model.mask_id, 2, model.mask_id]])
    with torch.inference_mode():
        torch.testing.assert_close(*(m(x).logits(x == m.mask_id) for m in (again, model)))
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

def test_a_gguf(toys, tmp_path):
    "The same Llama, written by gguf's own `GGUFWriter`, with another tokenizer."
    pytest.importorskip('gguf')
    net = LlamaForCausalLM.from_pretrained(toys / 'llama')
    model, V = pretrained(toys / 'llama.gguf'), net.config.vocab_size
    for name, w in net.state_dict().items():
        assert torch.equal(model.net.state_dict()[name][:len(w)], w), name
    assert model.mask_id >= V and model.shift and model.eos_ids[0] == V - 1
    assert model.tokenizer.token_to_id('<|mask|>') == model.mask_id
    navira.save(model, tmp_path / 'saved')
    again = pretrained(tmp_path / 'saved').net.state_dict()
    assert all(torch.equal(w, again[k]) for k, w in model.net.state_dict().items())
    (tmp_path / 'small.gguf').write_bytes((toys / 'llama.gguf').read_bytes()[:300])
    with says(ValueError, 'small.gguf: not a readable GGUF'): pretrained(tmp_path / 'small.gguf')
