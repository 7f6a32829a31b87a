"""`navira info` and `navira conformance FILE.py`, as a user meets them."""
import pytest

from helpers.cli import net, refuses, run, said  # noqa: F401

def test_every_policy_and_parameter_fits_80_columns(run, monkeypatch):
    from navira.sampler.registry import parameters, policies
    monkeypatch.setenv('COLUMNS', '80')
    printed = run('info')
    assert max(map(len, printed.splitlines())) <= 80 and '…' not in printed
    words = {*printed.split()}
    assert {*policies(), 'score=logit|probability|drawn|both'} <= words
    names = {word.partition('=')[0] for word in words if '=' in word}
    for factory in policies().values(): assert {*parameters(factory)} <= names

@pytest.mark.parametrize('name, facts', [
    ('llada', 'network LlamaForCausalLM, prism not with this model: this policy needs a quality'),
    ('llada-moe', 'family llada LLaDAMoEModel, block none, reads all others, at each position'),
    ('llada2', 'mask 277, block 32, reads its block, and what is before, at each position'),
    ('fast-dllm-v2', 'block 32, predicts the next token'),
    ('nemotron', 'mask 100, block 32, and its block while that has masks'),
    ('wedlm', 'once all masks are moved to the end')])
def test_what_a_family_reads_and_predicts(root, capsys, name, facts):
    code, printed = said(capsys, 'info', root / 'tests' / 'golden' / name)
    words = ' '.join(printed.out.split())
    assert not code and all(f' {fact}' in words for fact in facts.split(', ')), words
    assert ' llada-low-confidence not' not in words

def test_neither_a_policy_nor_a_model(refuses, tmp_path):
    refuses("the policy 'navira-onepass'?", 'info', 'navira-onepas')
    (tmp_path / 'foreign.ckpt').write_bytes(b'this is no checkpoint')
    refuses('foreign.ckpt', 'info', tmp_path / 'foreign.ckpt')

# --- conformance ----------------------------------------------------------------------------------

HEAD = """
import inspect, os, sys
sys.path.append({helpers!r})
from planted import llada

def stopped(ids): os._exit(0)
"""

@pytest.fixture
def file(tmp_path, root):
    "Writes a file with these samplers"
    def file(samplers):
        helpers = str(root / 'tests' / 'helpers')
        (tmp_path / 'own.py').write_text(HEAD.format(helpers=helpers) + samplers)
        return tmp_path / 'own.py'
    return file

@pytest.mark.parametrize('samplers, code, sentences', [
    ("'llada-low-confidence': llada", 0, ['4 of 4 cases conform', 'function does not take seed']),
    ("'fast-dllm': stopped, 'llada-low-confidence': llada", 1, ['SystemExit: 0', '4 of 4'])])
def test_the_exit_code_says_whether_all_conform(samplers, code, sentences, file, capsys):
    got, printed = said(capsys, 'conformance', file(f'samplers = {{{samplers}}}'))
    assert got == code and all(s in printed.out for s in sentences), printed

@pytest.mark.parametrize('text, sentence', [
    ('samplers = {}', 'no samplers; expected a dictionary'),
    ("samplers = {'llada-low-confidense': llada}", "did you mean 'llada-low-confidence'"),
    ('samplers = dict(mdlm=3)', 'mdlm: got 3; expected a function'),
    ('1 / 0', 'line 7: ZeroDivisionError: division by zero'),
    ('sys.exit(0)', 'it ends the program'), ('os._exit(0)', 'it ends the program'),
    ('def f(:', 'invalid syntax')])
def test_a_file_that_cannot_be_played_is_named(text, sentence, file, refuses):
    refuses(sentence, 'conformance', file(text))
