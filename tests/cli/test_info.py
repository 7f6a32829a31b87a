"""`navira info`: every policy with its hyper-parameters, on 80 columns."""
import pytest

from helpers.cli import net, refuses, run, said  # noqa: F401

def test_every_policy_and_parameter_fits_80_columns(run, monkeypatch):
    from navira.registry import parameters, policies
    monkeypatch.setenv('COLUMNS', '80')
    printed = run('info')
    assert max(map(len, printed.splitlines())) <= 80 and '…' not in printed
    words = {*printed.split()}
    assert {*policies(), 'score=logit|probability|drawn|both'} <= words
    names = {word.partition('=')[0] for word in words if '=' in word}
    for factory in policies().values(): assert {*parameters(factory)} <= names

@pytest.mark.parametrize('kind, facts', [
    ('llada', ['network LlamaForCausalLM', 'parameters 14,160', 'mask 277 ',
               'predicts the token at each position', 'length 64 ', 'ends (276,)']),
    ('dream', ['network Qwen2ForCausalLM', 'predicts the next token'])])
def test_a_model_of_the_transformers_library(kind, facts, pytestconfig, capsys):
    code, printed = said(capsys, 'info', pytestconfig.rootpath / 'tests' / 'golden' / kind)
    words = ' '.join(printed.out.split())
    assert not code and all(fact in words for fact in [*facts, 'quality head none']), words
    assert ' prism not with this model: this policy needs a quality head' in words
    assert ' llada-low-confidence not' not in words

def test_neither_a_policy_nor_a_model(refuses, tmp_path):
    refuses("the policy 'navira-onepass'?", 'info', 'navira-onepas')
    (tmp_path / 'foreign.ckpt').write_bytes(b'this is no checkpoint')
    refuses('foreign.ckpt', 'info', tmp_path / 'foreign.ckpt')
