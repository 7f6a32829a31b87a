"""Perplexity on cases with known answers, of models of several kinds, and what bad input gets."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from navira.evaluation.mauve import features
from navira.evaluation.perplexity import perplexity
from navira.evaluation.references import load_reference, Reference
from helpers.metrics import EOS, cases, folder, llama, ref, texts, tokenizer  # noqa: F401

def plain(ref, text):
    "A transcription: one text, full logits, a loop."
    ids = ref.tokenizer(text)['input_ids']
    lp = ref.model(torch.tensor([ids])).logits.double().log_softmax(-1)[0]
    nll = n = 0
    seen = int(ids[0] == ref.eos_id)
    for t in range(1, len(ids)):
        if ids[t] == ref.eos_id:
            seen += 1
            if seen > 1: continue
        nll -= lp[t-1, ids[t]].item()
        n += 1
    return nll, n

def test_it_equals_a_plain_transcription_whatever_the_order_and_the_batch(ref):
    ts = texts(6) + [f'w1 w2 {EOS} w3 w4 {EOS} w5', f'{EOS} w1 w2 {EOS} w3', f'w1 {EOS} {EOS} w2']
    want = np.array([plain(ref, t) for t in ts])
    for batch_tokens in 1, 100, None:
        p = perplexity(ts[::-1], replace(ref, batch_tokens=batch_tokens))
        np.testing.assert_allclose(p.nll.flip(0), want[:, 0], rtol=1e-5)
        assert p.weight.flip(0).tolist() == want[:, 1].tolist()
        assert p.value == pytest.approx(math.exp(want[:, 0].sum() / want[:, 1].sum()), rel=1e-5)


@pytest.mark.parametrize('bos', ['<s>', EOS])
def test_an_opening_token_is_context(bos):
    r = Reference(llama(), tokenizer(bos=bos))
    assert r.prefix == [r.tokenizer.bos_token_id]
    assert perplexity([f'w1 w2 {EOS} w3', '', 'w1'], r).weight.tolist() == [4, 0, 1]
    assert perplexity(['w1 w2 w3 w4'], r, max_length=3).weight.tolist() == [2]


def test_weights_kept_elsewhere_between_passes(folder, ref, tmp_path, two_threads):
    """Modules on the disk have no values of their own: only their hooks bring them in, for one
    batch at a time."""
    from accelerate import dispatch_model
    m = load_reference(folder, dtype=torch.float32, device='cpu').model
    parts = ('model.embed_tokens', 'model.layers', 'model.norm', 'model.rotary_emb', 'lm_head')
    spread = dispatch_model(m, dict.fromkeys(parts, 'disk'), main_device='cpu',
                            offload_dir=str(tmp_path))
    r = Reference(spread, ref.tokenizer)
    want = perplexity(cases * 5, ref).nll
    np.testing.assert_allclose(perplexity(cases * 5, r).nll, want, rtol=1e-4)
    np.testing.assert_allclose(features(r, cases), features(ref, cases), rtol=1e-4, atol=1e-5)

@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_a_reference_that_gives_no_numbers_says_so(value):
    "NaN would be stored as 'not judged'"
    r = Reference(llama(), tokenizer(), batch_tokens=50)
    with torch.no_grad(): r.model.model.norm.weight[0] = value
    for f in (lambda: perplexity(texts(4), r), lambda: features(r, texts(4))):
        with pytest.raises(ValueError, match='gives text [0-9]+ .*damaged'): f()
