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

# --- conformance ----------------------------------------------------------------------------------

STEP = """
import numpy as np

def llada(ids, logits, prompt, mask_id, step, steps):
    logits = logits.copy()
    logits[..., mask_id] = -np.inf
    p = np.exp(logits - logits.max(-1, keepdims=True))
    sure, token = (p / p.sum(-1, keepdims=True)).max(-1), p.argmax(-1)
    out = ids.copy()
    for b, x in enumerate(ids):
        masks, N = x == mask_id, (~prompt[b]).sum()
        due = N // steps * (step + 1) + min(N % steps, step + 1)
        k = min(due - (~masks & ~prompt[b]).sum(), masks.sum())
        best = np.where(masks, sure[b], -1).argsort()[::-1][:k]
        out[b, best] = token[b, best]
    return out

def broken(ids, step):
    return ids / (2 - step)

samplers = {'llada-low-confidence': llada}
"""

@pytest.fixture
def played(tmp_path, capsys):
    "The exit code, and what is printed of a file with this text"
    def played(text, *more):
        (tmp_path / 'own.py').write_text(text)
        code, printed = said(capsys, 'conformance', tmp_path / 'own.py', *more)
        return code, printed.out
    return played

def test_samplers_are_played_and_the_exit_code_says_whether_all_conform(played):
    code, printed = played(STEP)
    assert not code and 'llada-low-confidence: 1 of 1 cases conform' in printed
    assert 'as the function does not take noise, temperature' in printed
    code, printed = played(STEP.replace('(~prompt[b])', '(~prompt[0])'))
    assert code == 1 and '0 of 1 cases conform' in printed
    assert 'likely cause' in printed and 'row 0 of the batch' in printed
    assert max(map(len, printed.splitlines())) <= 80
    code, printed = played(STEP.replace('llada-low-confidence', 'mdlm'))     # plays no case
    assert code == 1 and 'mdlm: 0 of 0 cases conform' in printed

def test_one_rule_is_picked_and_an_error_inside_leaves_the_others(played):
    text = STEP.replace("': llada}", "': llada, 'fast-dllm': broken}")
    code, printed = played(text)
    assert code == 1 and 'step 0 of 5: ValueError: returned float64' in printed
    assert 'llada-low-confidence: 1 of 1 cases conform' in printed
    code, printed = played(text, '--rule', 'llada-low-confidence')
    assert not code and 'fast-dllm' not in printed

@pytest.mark.parametrize('text, sentence', [
    (None, 'not found'),
    ('samplers = {}\n', 'no samplers; expected a dictionary'),
    (STEP.replace('confidence', 'confidense'), "did you mean 'llada-low-confidence'"),
    (STEP.replace('steps)', 'temprature)'), "'temprature': did you mean 'temperature'"),
    ('samplers = dict(mdlm=3)\n', 'mdlm: got 3; expected a function'),
    ('import navira\n\n1 / 0\n', 'line 3: ZeroDivisionError: division by zero'),
    ('import sys\n\nsys.exit(0)\n', 'it ends the program'),
    ('def f(:\n', 'invalid syntax')])
def test_a_file_that_cannot_be_played_is_named(text, sentence, tmp_path, refuses):
    if text is not None: (tmp_path / 'own.py').write_text(text)
    refuses(sentence, 'conformance', tmp_path / 'own.py')

def test_a_rule_that_is_not_in_the_file(tmp_path, refuses):
    (tmp_path / 'own.py').write_text(STEP)
    refuses("--rule 'llada-low-confident': did you mean", 'conformance', tmp_path / 'own.py',
            '--rule', 'llada-low-confident')
