"""Networks of the transformers library: heads where they are asked for, both ways, in ragged
batches."""
import warnings

import accelerate
import pytest
import torch
from hypothesis import given, settings, strategies as hs
from transformers import (
    BertConfig, BertForMaskedLM, BertModel, DistilBertConfig, DistilBertForMaskedLM, GPT2Config, GPT2LMHeadModel,
    LlamaConfig, LlamaForCausalLM, ModernBertConfig, ModernBertForMaskedLM, Qwen3Config, Qwen3ForCausalLM,
    ConvBertConfig, ConvBertForMaskedLM, FNetConfig, FNetForMaskedLM, FunnelConfig, FunnelForMaskedLM, GPTNeoConfig,
    GPTNeoForCausalLM, MambaConfig, MambaForCausalLM, MptConfig, MptForCausalLM, RobertaConfig, RobertaForMaskedLM,
    T5Config, T5ForConditionalGeneration)

import navira
from navira.models.transformers import LinearQuality, head_of, wrap
from helpers.sample_api import says
from pretended import Pretended

V, M = 61, 60
SIZE = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=40)
ENDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
NETS = {
    'llama': lambda: LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, **SIZE, **ENDS)),
    'qwen3': lambda: Qwen3ForCausalLM(Qwen3Config(num_key_value_heads=1, head_dim=8, **SIZE, **ENDS)),
    'gpt2': lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=V, n_positions=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)),
    'bert': lambda: BertForMaskedLM(BertConfig(**SIZE)),
    'roberta': lambda: RobertaForMaskedLM(RobertaConfig(**SIZE, pad_token_id=1)),
    'distilbert': lambda: DistilBertForMaskedLM(DistilBertConfig(
        vocab_size=V, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=40)),
    'modernbert': lambda: ModernBertForMaskedLM(ModernBertConfig(
        cls_token_id=1, sep_token_id=2, local_attention=8, global_attn_every_n_layers=2, **SIZE, **ENDS))}

def net(name, dtype=torch.float64):
    torch.manual_seed(1)
    return NETS[name]().to(dtype).eval()

def wrapped(name, dtype=torch.float64, **kw):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')                  # they were never adapted
        return wrap(net(name, dtype), mask_id=M, **kw)

def ids(rows, length, seed=0): return torch.randint(3, M, (rows, length), generator=torch.Generator().manual_seed(seed))

@pytest.fixture(params=NETS)
def name(request): return request.param

@torch.inference_mode()
def test_the_head_alone_gives_the_networks_logits(name):
    for dtype in (torch.float32, torch.float64):
        n, x = net(name, dtype), ids(2, 9)
        h = n.base_model(input_ids=x).last_hidden_state
        torch.testing.assert_close(head_of(n)(inputs_embeds=h).logits, n(input_ids=x).logits, rtol=1e-6, atol=1e-6)

@torch.inference_mode()
@pytest.mark.parametrize('shift', [False, True])
def test_logits_where_they_are_asked_for(name, shift):
    model, x = wrapped(name, shift=shift), ids(3, 9)
    x[:, 4:7] = M
    where = (x == M) & torch.tensor([[True], [False], [True]])
    whole = model.net(input_ids=x).logits                # the net attends both ways now
    if shift: whole = torch.cat([whole[:, :1], whole[:, :-1]], 1)
    whole[..., M] = -torch.inf
    p = model(x)
    torch.testing.assert_close(p.logits(where), whole[where])
    assert torch.equal(p.seen_masked, x == M) and p.logits(where).dtype == torch.float64

@torch.inference_mode()
def test_every_position_attends_to_every_other(name):
    model, x = wrapped(name), ids(1, 9)
    for a, b in ((0, 8), (8, 0)):
        y = x.clone(); y[0, b] = (y[0, b] + 1) % M
        assert (model(x).h[0, a] - model(y).h[0, a]).abs().max() > 1e-8

@torch.inference_mode()
def test_the_vocabulary_is_touched_only_where_it_is_asked_for(name):
    "And by no scoring pass: rows that go through the last matrix are counted."
    model, seen = wrapped(name), []
    model.quality = LinearQuality(16)
    model.net.get_output_embeddings().register_forward_hook(lambda m, a, out: seen.append(out.numel() // V))
    x = ids(4, 12); x[:, 5:] = M
    p = model(x)
    p.quality()
    assert seen == []
    where = torch.zeros_like(x, dtype=torch.bool); where[0, 6], where[2, 7:9] = True, True
    p.logits(where)
    assert seen == [3]
    del seen[:]
    out = navira.sample(model, 'navira-det', 8, n=2, length=10, eta=.4, on=0., batch_size=2)
    written = 2 * 10 + 2 * 8 * 10 * .4 * 3                # far below 2 x 8 x 10 positions in each of 8 passes
    assert sum(seen) <= written and (out.tokens != M).all()

@settings(max_examples=10)
@given(hs.lists(hs.integers(1, 30), min_size=2, max_size=4), hs.sampled_from(sorted(NETS)), hs.integers(0, 9))
def test_a_row_of_a_ragged_batch_is_what_it_is_alone(lengths, name, seed):
    model, x = wrapped(name), torch.full((len(lengths), max(lengths)), -1)
    for b, n in enumerate(lengths): x[b, :n] = ids(1, n, seed + b)[0]
    with torch.inference_mode():
        together = model(x).h
        for b, n in enumerate(lengths):
            torch.testing.assert_close(together[b, :n], model(x[b:b + 1, :n]).h[0], rtol=1e-9, atol=1e-10)

@pytest.mark.parametrize('policy', ['backbone', 'remdm-conf', 'llada-low-confidence', 'navira-det', 'dream-entropy'])
def test_prompts_of_several_lengths_in_one_batch(name, policy):
    model, prompts = wrapped(name), [ids(1, n, n)[0] for n in (3, 11, 1, 6)]
    model.quality = LinearQuality(16)
    torch.nn.init.normal_(model.quality.linear.weight, generator=torch.Generator().manual_seed(0))
    hyper = dict(eta=.3, on=0.) if policy == 'navira-det' else {}
    how = dict(budget=8, max_new_tokens=7, seed=3, eos='keep') | hyper
    out = navira.sample(model, policy, prompt=prompts, batch_size=4, **how)
    for i, p in enumerate(prompts):
        alone = navira.sample(model, policy, n=range(i, i + 1), prompt=[p], **how)
        assert out.tokens[i, :len(p) + 7].tolist() == alone.tokens[0].tolist()
        assert out.tokens[i, :len(p)].tolist() == p.tolist() and (out.tokens[i, len(p) + 7:] == -1).all()
        assert out.n_forward[i] == alone.n_forward[0]

# --- networks that do not do as they are told

LEFT = {
    'GPTNeo': lambda: GPTNeoForCausalLM(GPTNeoConfig(
        vocab_size=V, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[['global', 'local'], 1]])),
    'Mamba': lambda: MambaForCausalLM(MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=2, state_size=4)),
    'Mpt': lambda: MptForCausalLM(MptConfig(vocab_size=V, d_model=16, n_layers=2, n_heads=2, max_seq_len=40))}

@pytest.mark.parametrize('left', LEFT)
@pytest.mark.filterwarnings('ignore:.*left to right')
def test_a_network_that_cannot_look_both_ways_is_refused(left):
    with says(ValueError, f'{left}ForCausalLM', 'both ways', 'Llama'): wrap(LEFT[left](), mask_id=M)

MIXED = {
    'FNet': lambda: FNetForMaskedLM(FNetConfig(**SIZE)),
    'ConvBert': lambda: ConvBertForMaskedLM(ConvBertConfig(**SIZE, embedding_size=16)),
    'Funnel': lambda: FunnelForMaskedLM(FunnelConfig(
        vocab_size=V, block_sizes=[1, 1], d_model=16, n_head=2, d_head=8, d_inner=24))}

@pytest.mark.parametrize('mixed', MIXED)
def test_a_network_that_mixes_padding_into_the_text_is_given_none(mixed):
    torch.manual_seed(0)
    model, prompts = wrap(MIXED[mixed]().double(), mask_id=M), [ids(1, n, n)[0] for n in (3, 7, 1, 3)]
    assert not model.ragged
    out = navira.sample(model, 'backbone', 6, prompt=prompts, max_new_tokens=5, batch_size=4, eos='keep')
    for i, p in enumerate(prompts):
        alone = navira.sample(model, 'backbone', 6, range(i, i + 1), prompt=[p], max_new_tokens=5, eos='keep')
        assert out.tokens[i, :len(p) + 5].tolist() == alone.tokens[0].tolist()
    with says(ValueError, 'several lengths', mixed): model(torch.tensor([[5, 6], [5, -1]]))

@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_network_that_keeps_padding_out_takes_rows_of_several_lengths(name, dtype):
    assert wrapped(name, dtype).ragged

def test_what_is_asked_of_a_network_costs_three_passes_of_a_few_tokens():
    n, seen = net('llama'), []
    n.base_model.register_forward_pre_hook(lambda m, a, kw: seen.append(kw['input_ids'].numel()), with_kwargs=True)
    with pytest.warns(UserWarning, match='left to right'): wrap(n, mask_id=M)
    assert len(seen) == 3 and max(seen) <= 4
    with pytest.warns(UserWarning): assert wrap(net('llama').to('meta'), mask_id=M).ragged    # nothing to compute with

@pytest.mark.parametrize('shift', [None, False, True])
def test_a_network_that_is_wrapped_again_is_what_it_was(name, shift):
    one = wrapped(name, shift=shift)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        two = wrap(one.net)
    assert (two.shift, two.mask_id) == (one.shift, one.mask_id)

@torch.inference_mode()
def test_a_network_on_two_devices_gives_everything_where_its_input_is():
    "As `device_map='auto'` spreads it: the last layer and the head are on the second device."
    plain, model = wrapped('llama', torch.float32), wrapped('llama', torch.float32)
    plain.quality, model.quality = LinearQuality(16), LinearQuality(16)
    with Pretended() as p:
        for part in (model.net.model.norm, model.net.lm_head):
            part.to('cuda:0')
            part.register_forward_pre_hook(lambda m, a: (a[0].to('cuda:0'),))
        x = torch.full((1, 6), M)
        out, told = model(x), plain(x)
        assert p.on(model.net.lm_head.weight) and not any(map(p.on, (out.h, out.logits(x == M), out.quality())))
        torch.testing.assert_close(out.logits(x == M), told.logits(x == M))

def test_roberta_counts_positions_whatever_the_text_holds():
    "Its own rule takes a padding token in the text for no position."
    model, x = wrapped('roberta'), ids(1, 9)
    x[0, 3] = 1                                          # its padding
    at = torch.arange(2, 11)[None]
    with torch.inference_mode():
        told = model.net.base_model(input_ids=x, position_ids=at, attention_mask=torch.ones_like(x)).last_hidden_state
        torch.testing.assert_close(model(x).h, told)
    assert model.length == 38

def test_a_network_that_is_kept_elsewhere():
    "Accelerate's hooks bring weights in for one module at a time; the head is one of them."
    plain, spread, x = wrapped('llama'), wrapped('llama'), torch.full((1, 6), M)
    accelerate.cpu_offload(spread.net, execution_device='cpu', offload_buffers=True)
    assert spread.device.type == 'cpu'
    with torch.inference_mode():
        torch.testing.assert_close(spread(x).logits(x == M), plain(x).logits(x == M))

def test_suppressed_tokens_are_never_written():
    model = wrapped('bert').suppressing(tuple(range(3, 50)))
    out = navira.sample(model, 'backbone', 8, n=4, length=8)
    assert set(out.tokens.flatten().tolist()) <= {0, 1, 2, *range(50, M)}

def test_precision():
    x = torch.full((1, 6), M)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        told = torch.promote_types(dtype, torch.float32)
        assert wrapped('llama', dtype)(x).logits(x == M).dtype == told
    model = wrapped('llama', torch.bfloat16)
    model.quality = LinearQuality(16)
    out = navira.sample(model, 'prism', 4, length=6, eta=.5, on=0.)
    assert model(x).quality().dtype == torch.float32 and out.tokens.shape == (1, 6) and (out.tokens != M).all()

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float32, torch.float64])
def test_a_head_works_in_the_precision_of_the_hidden_states(dtype):
    model = wrapped('bert', dtype)
    model.quality = LinearQuality(16)
    torch.nn.init.normal_(model.quality.linear.weight)
    q = model(ids(2, 5)).quality()
    assert q.dtype == torch.promote_types(dtype, torch.float32) and q.std() > 0

def test_mistakes():
    for make, parts in (
            (lambda: wrap(net('bert')), ['which token is the mask', 'no tokenizer', 'mask_id=']),
            (lambda: wrap(net('bert'), mask_id=61), ['mask_id=61', '0 to 60']),
            (lambda: wrap(BertModel(BertConfig(**SIZE)), mask_id=M), ['BertModel', 'no head', 'BertForMaskedLM']),
            (lambda: wrap('bert-base-uncased'), ['str', 'transformers library']),
            (lambda: wrap(T5ForConditionalGeneration(T5Config(
                vocab_size=V, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)), mask_id=M),
             ['encoder-decoder'])):
        with says(ValueError, *parts): make()
    with pytest.warns(UserWarning, match='left to right'): wrap(net('llama'), mask_id=M)
    model = wrapped('llama')
    with says(ValueError, 'quality head', 'backbone'): model(ids(1, 4)).quality()
    with says(ValueError, '41 positions', '40'): model(ids(1, 41))
    with says(ValueError, 'int64'): model(ids(1, 4).int())
    with says(ValueError, 'prompt 0', '39 tokens', 'at most 40'): navira.sample(
        model, 'backbone', 4, prompt=[ids(1, 39)[0]], max_new_tokens=2)
