"""What the tests of experiments share."""
import itertools, json, linecache, os, random, subprocess, sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

import navira.experiments.old_run as ex_run
from navira.models.load import load as load_model, save
from navira.evaluation.perplexity import Reference
from navira.experiments.old_sweep import read_sweep
from navira.experiments.old_store import checked, write_table
from navira.experiments.measure import measures
from toys import small_lm

ENTRIES = [
    dict(policy='prism', trace=True, eta=0.2),
    dict(policy='navira', tau=0.2, vary=dict(eta=[0.1, 0.3])),
    dict(policy='backbone'),
]

CONFIG = dict(n=10, batch_size=4, budgets=[4, 8], metrics=['entropy'], entries=ENTRIES)

WORDS = '. we saw a red fox and it ran away'.split()

def words():
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token='.'))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return tok

def toml(d):
    "Enough of TOML for a configuration; JSON's lists, texts and numbers are TOML's"
    tables = d.get('entries', [])

    def value(v):
        return (
            '{' + ', '.join(f'{k} = {value(x)}' for k, x in v.items()) + '}' if isinstance(v, dict) else json.dumps(v)
        )
    lines = [f'{k} = {value(v)}' for k, v in d.items() if k != 'entries']
    return '\n'.join(lines + ['[[entries]]\n' + '\n'.join(f'{k} = {value(v)}' for k, v in t.items()) for t in tables])

@pytest.fixture(scope='module', autouse=True)
def one_thread_each():
    """As in the processes that are started here: on a CPU a batch is shared out among threads, and its shape decides
    the last bit"""
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)

@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    "Nobody's own: what was measured is not kept beyond a test"
    monkeypatch.setattr('navira.experiments.costs.cache_folder', lambda: tmp_path / 'cache')
    return tmp_path / 'cache'

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A model on disk, a configuration that names it, and the store of an undisturbed sweep."
    home = tmp_path_factory.mktemp('grid')
    model = small_lm(seed=3); model.tokenizer = words()
    save(model, home / 'model')
    (home / 'grid.toml').write_text(toml(CONFIG | dict(model=str(home / 'model'))))
    sweep = read_sweep(home / 'grid.toml')
    store = ex_run.run(sweep, home / 'whole')
    return SimpleNamespace(
        folder=home, config=home / 'grid.toml', sweep=sweep, model=load_model(home / 'model'), store=store
    )

def contents(store):
    "What a store says, timings and the places it was made in aside."
    out = {}
    for key in store.keys:
        table, about = checked(store.cell(key))
        out[key] = table.drop_columns(['seconds']).to_pydict(), about
    return out

def clean(store):
    "Nothing half-done: no parts, no temporary files."
    return not list(store.folder.glob('parts/*')) and not [
        p for p in store.folder.rglob('.*') if p.name.endswith('.tmp')
    ]

def same(a, b): return contents(a) == contents(b) and clean(a) and clean(b)

def cli(*args, prefix=(sys.executable, '-m', 'navira.cli'), **kw):
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '', 'COLUMNS': '200', **kw.pop('env', {})}
    return subprocess.Popen(
        [*prefix, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, **kw
    )

def foreign(path): pq.write_table(pa.table(dict(a=[1, 2])), path)

def said(change):
    def damage(path):
        table, about = checked(path)
        write_table(path, table, change(about))
    return damage

some = lambda values, **kw: st.lists(values, unique=True, **kw)

entries = st.fixed_dictionaries(
    dict(policy=st.sampled_from(['prism', 'navira-det', 'backbone', 'mdlm'])),
    optional=dict(
        p=st.sampled_from([0.5, 1]),
        budgets=some(st.integers(2, 40), min_size=1, max_size=3),
        n=st.integers(1, 30),
        seeds=some(st.integers(0, 5), min_size=1, max_size=2),
        label=st.sampled_from(['a', 'b']),
        trace=st.booleans(),
        vary=st.fixed_dictionaries(dict(p=some(st.sampled_from([0.25, 0.75, 0.875]), min_size=1))),
    ),
)

GOLDEN = {
    'backbone': 'ce677b6de469',
    'prism': 'e2033244877c',
    'prism-stochastic': 'e934075dac7e',
    'navira-det': '9e3579295d87',
    'navira': '469c32fd523e',
    'navira-quadratic': '15360224c545',
    'navira-sigmoid': 'e65228e2b3a4',
    'navira-piecewise': '9e56d09076ef',
    'mdlm': '0e9c52778e78',
    'remdm-cap': '43ce9f6c6b4b',
    'remdm-rescale': '21172bc4afa5',
    'remdm-switch': 'a6502c5ede27',
    'remdm-loop': 'fe4c9366ae0d',
    'forward-backward': '861b7cec38ad',
    'dfm': 'b7e418ea896e',
    'remdm-conf': 'bf309372fea6',
    'first-hitting': '939106db449e',
    'llada-random': 'b13b4d83e046',
    'llada-low-confidence': '919305217093',
    'dream-origin': '66b44403010e',
    'dream-maskgit-plus': 'b88fa51bc2a8',
    'dream-topk-margin': '3d09bd92f5ea',
    'dream-entropy': '70bfba149a77',
    'maskgit': 'f261369e6482',
    'fast-dllm': 'bcde04f2a749',
    'eb': '80f77fbb4b52',
    'dus': '4d2b67dfe7ab',
    'p2': '0539e8b518db',
    'remedi': 'f66dfa60ee69',
    'entropy-remask': 'f400654965dc',
    'margin-remask': 'ad4caaba0c3c',
    'mask-predict': 'c175719aead4',
    'prism-loop': '27c0531bdf29',
    'informed-corrector': 'bd10549b9970',
    'token-critic': '63e91b539218',
    'navira-onepass': 'a860b39145d4',
    'navira-onepass-quadratic': '082f573199d6',
    'navira-onepass-sigmoid': '8db213e5748d',
    'navira-onepass-piecewise': 'd39e01bb0a67',
    'navira-onepass-suspects': '190b9d8c74ca',
}

# --- measured ---------------------------------------------------------------------------------------------------------

@pytest.fixture
def measured(home, tmp_path):
    "A store of one's own"
    return ex_run.run(replace(home.sweep, entries=home.sweep.entries[:1]), tmp_path / 'store', home.model)

def counted(monkeypatch, name='entropy'):
    rows, f = [], measures[name]
    monkeypatch.setitem(measures, name, lambda w: rows.append(len(w.tokens)) or f(w))
    return rows

@pytest.fixture(scope='module')
def judge():
    "A causal model of random numbers that knows the words and a separator"
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    torch.manual_seed(0)
    tok = PreTrainedTokenizerFast(tokenizer_object=words(), eos_token='<|endoftext|>')
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    ).eval()
    return Reference(model, tok, '<|endoftext|>', 'random')

@pytest.fixture(scope='module')
def sixty(home, tmp_path_factory):
    "A cell of sixty texts, to be compared with a corpus"
    folder = tmp_path_factory.mktemp('sixty')
    (folder / 'real.txt').write_text(' '.join(random.Random(0).choices(WORDS, k=2000)))
    s = replace(
        home.sweep,
        entries=home.sweep.entries[:1],
        budgets=(4,),
        n=60,
        batch_size=60,
        features=4,
        scored=7,
        real=str(folder / 'real.txt'),
        metrics=('entropy',),
    )
    return ex_run.run(s, folder / 's', home.model)

# --- a policy of one's own --------------------------------------------------------------------------------------------
HEAD = """
from dataclasses import replace
from navira.decoupling import navira_det
from navira.core import TopK
from navira.prism import low_quality, remask_count
from navira.registry import register
"""

CELLS = itertools.count()

def own_policy(source):
    "Register a policy from source, as a notebook does when a cell is run again"
    source, name = HEAD + source, f'<cell-{next(CELLS)}>'
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    exec(compile(source, name, 'exec'), dict(__name__='somebody'))

BODY = """
SCALE = {scale}
def scaled(v): return v * SCALE        {comment}
{beside}
class Score:
    needs_quality = True
    weight = {weight}
    def __call__(self, st, p, where): return {sign}scaled(low_quality(st, p, where)) * self.weight + 0 * st.i
@register('somebodys')
def somebodys(eta: float = .2): return replace(navira_det(), remask=TopK(Score(), remask_count(eta)))
"""

@pytest.fixture
def somebody():
    from navira.registry import _about, _registry
    yield lambda **kw: own_policy(BODY.format(**dict(scale=1., sign='', comment='', weight=1., beside='') | kw))
    _registry.pop('somebodys', None); _about.pop('somebodys', None)
