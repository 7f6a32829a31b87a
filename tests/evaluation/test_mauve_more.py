"""MAUVE: how close is the set of samples to a set of human texts?"""
import math, sys, types
from dataclasses import replace

import numpy as np
import pytest
import torch

from navira.evaluation.perplexity import _entry, Reference, encode, perplexity
from navira.evaluation.endpoints import Endpoint
from navira.evaluation.mauve import features, mauve
from helpers.metrics import EOS
from helpers.metrics_more import cases, folder, ids, ref  # noqa: F401

def hidden(ref, text):
    ids = ref.tokenizer(text)['input_ids'] or [ref.eos_id]
    with torch.no_grad(): return ref.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]

def test_features_are_the_last_hidden_states(ref):
    x = features(ref, cases)
    assert x.shape == (12, 32) and x.dtype == torch.float32
    np.testing.assert_allclose(x, torch.stack([hidden(ref, t) for t in cases]), rtol=1e-4, atol=1e-5)
    last = hidden(ref, f'w1 w2 {EOS}')
    np.testing.assert_allclose(features(ref, [f'w1 w2 {EOS} {EOS} {EOS}'])[0], last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(features(ref, [f'w1 w2 {EOS} w3'], eos='stop')[0], last, rtol=1e-4, atol=1e-5)
    for kw in dict(batch_tokens=1), dict(batch_tokens=300):
        np.testing.assert_allclose(features(ref, cases, **kw), x, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match='list of strings'): features(ref, 'w1')

# --- MAUVE ----------------------------------------------------------------------------------------
def test_mauve_is_called_with_real_text_first(monkeypatch):
    seen = {}
    def compute(**kw): seen.update(kw); return types.SimpleNamespace(mauve=.25, mauve_star=.75)
    monkeypatch.setitem(sys.modules, 'mauve', types.SimpleNamespace(compute_mauve=compute, __spec__=object()))
    p, q = torch.zeros(4, 3), torch.ones(5, 3)
    assert mauve(p, q) == .25 and mauve(p, q, buckets=3, scaling=2., star=True, seed=7) == .75
    assert seen['p_features'].tolist() == p.tolist() and seen['q_features'].tolist() == q.tolist()
    assert (seen['num_buckets'], seen['mauve_scaling_factor'], seen['seed']) == (3, 2., 7)

def test_mauve_says_what_is_wrong(monkeypatch):
    x = np.zeros((4, 3))
    for a, b, kw, what in [
        (x, x[:, :2], {}, 'features of 3 and 2'),
        (x[0], x, {}, r'p has shape \(3,\)'),
        (x, x[:1], {}, 'q has shape'),
        (x, x + math.inf, {}, 'q: text 0'),
        (x, x, dict(buckets=9), 'at most the 8'),
        (x, x, dict(buckets=1), 'buckets=1'),
    ]:
        with pytest.raises(ValueError, match=what):
            mauve(a, b, **kw)
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r"'mauve-text'.*pip install \"\.\[mauve\]\""): mauve(x, x)

def test_mauve_known_answers():
    pytest.importorskip('mauve')
    cloud = np.random.default_rng(0).standard_normal((100, 5)); e = 100 * np.eye(5)
    assert mauve(cloud, cloud) == pytest.approx(1)
    assert mauve(cloud + e[0], cloud + e[1]) == pytest.approx(1 / 252, abs=1e-3)
    half = np.concatenate([cloud[:50] + e[0], cloud[50:] + e[1]])
    assert .01 < mauve(half, cloud + e[0]) < .99

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

def test_bad_endpoints(ref, folder, monkeypatch):
    for kw, what in [
        (dict(base_url='localhost:8000'), 'base_url'),
        (dict(base_url='ftp://h/v1'), 'base_url'),
        (dict(concurrency=0), 'concurrency=0'),
        (dict(retries=-1), 'retries=-1'),
        (dict(timeout=0), 'timeout=0'),
        (dict(eos='<nope>'), 'no token of m'),
    ]:
        with pytest.raises(ValueError, match=what):
            Endpoint(**{**dict(base_url='http://h/v1', model='m', tokenizer=ref.tokenizer), **kw})
    with pytest.raises(ValueError) as e: Endpoint('http://me:hush@h/v1', 'm', ref.tokenizer)
    assert 'hush' not in str(e.value)
    with pytest.raises(KeyError, match="did you mean 'echo'"): Endpoint('http://h/v1', 'm', ref.tokenizer, form='ehco')
    end = Endpoint.load('http://h/v1', 'm', folder, concurrency=2)
    assert (end.eos, end.concurrency, end.name) == (EOS, 2, 'm')
    assert encode(end, ['w1'])[0].tolist() == encode(ref, ['w1'])[0].tolist()
    assert encode(replace(end, limit=2), ['w1 w2 w3'])[0].tolist() == [3, 4]
    with pytest.raises(FileNotFoundError, match='no such folder'): Endpoint.load('http://h/v1', 'm', './none')
    with pytest.raises(ValueError, match='no hidden states'): features(end, ['w1'])
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r"'openai'.*pip install \"\.\[eval\]\""): perplexity(['w1 w2'], end)
