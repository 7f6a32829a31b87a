"""Networks of the transformers library: lazy heads, both ways, ragged batches."""
import accelerate
import pytest
import torch
from transformers import FNetConfig, FNetForMaskedLM

import navira
from navira.models.adapter import LinearQuality
from navira.models.transformers import wrap
from helpers.checkpoints import M, NETS, SIZE, V, wrapped
from helpers.sample_api import says

def ids(rows, length, seed=0):
    return torch.randint(3, M, (rows, length), generator=torch.Generator().manual_seed(seed))

@pytest.fixture(params=NETS)
def name(request): return request.param

@torch.inference_mode()
@pytest.mark.parametrize('shift', [False, True])
def test_attention_that_is_read_is_the_librarys_own(name, shift):
    model, x = wrapped(name, shift=shift), ids(2, 9)
    p, read = model.attending(x)
    torch.testing.assert_close(p.h, model(x).h)
    model.net.set_attn_implementation('eager')
    maps = model.net.base_model(input_ids=x, output_attentions=True).attentions
    mean = torch.stack(maps).mean((0, 2))
    if shift: mean = torch.cat([mean[:, :1], mean[:, :-1]], 1)
    torch.testing.assert_close(read, mean)

@torch.inference_mode()
def test_the_vocabulary_is_touched_only_where_it_is_asked_for(name):
    "And by no scoring pass: rows that go through the last matrix are counted."
    model, rows, x = wrapped(name), [], ids(4, 12)
    model.quality = LinearQuality(16)
    x[:, 5:] = M
    where = torch.zeros_like(x, dtype=torch.bool)
    where[0, 6], where[2, 7:9] = True, True
    every = model(x).logits(x >= 0).view(4, 12, V)
    head = model.net.get_output_embeddings()
    head.register_forward_hook(lambda m, a, out: rows.append(out.numel() // V))
    p = model(x)
    p.quality()
    torch.testing.assert_close(p.logits(where), every[where])
    assert rows == [3] and torch.equal(p.seen_masked, x == M)

@torch.inference_mode()
def test_with_the_embedding_of_another_token_it_is_the_pass_over_that_text(name):
    model, x = wrapped(name), ids(2, 9)
    y, every = x.clone(), torch.ones_like(x, dtype=torch.bool)
    y[1, 3] = M
    weight = model.net.get_input_embeddings().weight
    p = model.embedded(x, lambda h: torch.where((x != y)[..., None], weight[M], h))
    torch.testing.assert_close(p.logits(every), model(y).logits(every))

# --- networks that are different ---------------------------------------------------------------

def test_a_network_that_mixes_padding_into_the_text_is_given_none():
    "Prompts of several lengths in one batch give what each gives alone."
    torch.manual_seed(0)
    model = wrap(FNetForMaskedLM(FNetConfig(**SIZE)).double(), mask_id=M)
    how = dict(max_new_tokens=7, seed=3, eos='keep', prompt=[ids(1, n, n)[0] for n in (3, 11, 3)])
    both, alone = (navira.sample(model, 'mdlm', 8, batch_size=b, **how).tokens for b in (3, 1))
    assert torch.equal(both, alone) and not model.ragged
    with says(ValueError, 'several lengths', 'FNet'): model(torch.tensor([[5, 6], [5, -1]]))

@torch.inference_mode()
def test_roberta_counts_positions_whatever_the_text_holds():
    "Its own rule takes a padding token in the text for no position."
    model, x = wrapped('roberta'), ids(1, 9)
    x[0, 3] = 1                                          # its padding
    how = dict(position_ids=torch.arange(2, 11)[None], attention_mask=torch.ones_like(x))
    want = model.net.base_model(input_ids=x, **how).last_hidden_state
    torch.testing.assert_close(model(x).h, want)
    assert model.length == 38

@torch.inference_mode()
def test_a_network_that_is_kept_elsewhere():
    "Accelerate's hooks bring weights in for one module at a time; the head is one of them."
    plain, spread, x = wrapped('llama'), wrapped('llama'), torch.full((1, 6), M)
    accelerate.cpu_offload(spread.net, execution_device='cpu', offload_buffers=True)
    assert spread.device.type == 'cpu'
    torch.testing.assert_close(spread(x).logits(x == M), plain(x).logits(x == M))

@pytest.mark.parametrize('make, parts', [
    (lambda: wrap('bert-base-uncased'), ['str', 'transformers library']),
    (lambda: wrapped('llama')(ids(1, 4)).quality(), ['quality head', 'backbone']),
    (lambda: wrapped('llama')(ids(1, 41)), ['41 positions', '40'])])
def test_mistakes(make, parts):
    with says(ValueError, *parts): make()
