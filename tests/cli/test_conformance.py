"""`navira conformance FILE.py`, as a user meets it."""

import pytest

from helpers.cli import refuses, said  # noqa: F401

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
def own(tmp_path):
    (tmp_path / 'own.py').write_text(STEP)
    return tmp_path / 'own.py'


def test_a_right_sampler_ends_with_exit_code_0(own, capsys):
    code, printed = said(capsys, 'conformance', own)
    assert not code and 'llada-low-confidence: 1 of 1 cases conform' in printed.out
    assert 'as the function does not take noise, temperature' in printed.out


def test_a_wrong_one_ends_with_1_and_its_cause(own, capsys):
    own.write_text(STEP.replace('(~prompt[b])', '(~prompt[0])'))
    code, printed = said(capsys, 'conformance', own)
    assert code == 1 and '0 of 1 cases conform' in printed.out
    assert 'likely cause' in printed.out and 'row 0 of the batch' in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80


def test_one_rule_is_picked_and_an_error_inside_leaves_the_others(own, capsys):
    own.write_text(STEP.replace("': llada}", "': llada, 'fast-dllm': broken}"))
    code, printed = said(capsys, 'conformance', own)
    assert code == 1 and 'step 0 of 5: ValueError: returned float64' in printed.out
    assert 'llada-low-confidence: 1 of 1 cases conform' in printed.out
    code, printed = said(capsys, 'conformance', own, '--rule', 'llada-low-confidence')
    assert not code and 'fast-dllm' not in printed.out


def test_a_sampler_that_plays_no_case_does_not_conform(own, capsys):
    own.write_text(STEP.replace('llada-low-confidence', 'mdlm'))
    code, printed = said(capsys, 'conformance', own)
    assert code == 1 and 'mdlm: 0 of 0 cases conform' in printed.out


@pytest.mark.parametrize(
    'text, sentence',
    [
        (None, 'not found'),
        ('step = 1\n', 'no samplers; expected a dictionary'),
        ('samplers = {}\n', 'no samplers; expected a dictionary'),
        (STEP.replace('confidence', 'confidense'), "did you mean 'llada-low-confidence'"),
        (STEP.replace('steps)', 'temprature)'), "'temprature': did you mean 'temperature'"),
        ('samplers = dict(mdlm=3)\n', 'mdlm: got 3; expected a function'),
        ('import navira\n\n1 / 0\n', 'line 3: ZeroDivisionError: division by zero'),
        ('import sys\n\nsys.exit(0)\n', 'it ends the program (exit 0)'),
        ('def f(:\n', 'invalid syntax'),
    ],
)
def test_a_file_that_cannot_be_played_is_named(text, sentence, own, refuses):
    own.unlink() if text is None else own.write_text(text)
    refuses(sentence, 'conformance', own)


def test_a_rule_that_is_not_in_the_file(own, refuses):
    refuses("--rule 'llada-low-confident': did you mean", 'conformance', own, '--rule',
            'llada-low-confident')
