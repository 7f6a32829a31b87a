"""`navira info`: every policy with its hyper-parameters, on 80 columns."""

import pytest

from helpers.cli import net, refuses, run, said  # noqa: F401


def test_everything_fits_80_columns_whole(run, monkeypatch):
    from navira.registry import parameters, policies

    monkeypatch.setenv('COLUMNS', '80')
    printed = run('info')
    assert max(map(len, printed.splitlines())) <= 80 and '…' not in printed
    words = printed.split()
    assert {*policies(), 'score=logit|probability|drawn|both'} <= {
        *words
    } and 'quality head' in printed
    for factory in policies().values():
        for name in parameters(factory):
            assert any(word.startswith(f'{name}=') for word in words)


@pytest.mark.parametrize(
    'kind, facts',
    [
        (
            'llada',
            [
                'network LlamaForCausalLM',
                'parameters 14,160',
                'mask 277 ',
                'predicts the token at each position',
                'length 64 ',
                'ends (276,)',
            ],
        ),
        ('dream', ['network Qwen2ForCausalLM', 'predicts the next token']),
    ],
)
def test_a_model_of_the_transformers_library(kind, facts, pytestconfig, capsys):
    code, printed = said(capsys, 'info', pytestconfig.rootpath / 'tests' / 'golden' / kind)
    words = ' '.join(printed.out.split())
    assert not code and all(fact in words for fact in [*facts, 'quality head none']), words
    assert ' prism not with this model: this policy needs a quality head' in words
    assert ' llada-low-confidence not' not in words


def test_neither_a_policy_nor_a_model(refuses, tmp_path):
    refuses("the policy 'navira-onepass'?", 'info', 'navira-onepas')
    (tmp_path / 'foreign.ckpt').write_bytes(b'this is no checkpoint')
    refuses('no config.json beside it', 'info', tmp_path / 'foreign.ckpt')
