"""The bound of a model whose entropy is known."""
import json, math

import numpy as np
import pytest
import torch
from tokenizers import models, Tokenizer

import navira
from navira.training.bound import characters, evaluate_nelbo
from helpers.training import one_thread, tiny_model  # noqa: F401

def test_nelbo_of_a_uniform_model():
    model = tiny_model().eval()
    e = evaluate_nelbo(model, np.random.default_rng(0).integers(0, 11, (500, 10)))
    assert abs(e.value - math.log(11)) < 3 * e.se and e.n == 500

@pytest.mark.parametrize('name', ['mdlm', 'llada', 'dream'])
def test_the_logits_of_a_large_vocabulary_are_never_whole(pytestconfig, monkeypatch, name):
    "In portions, of one row and of a few, the sum is the same."
    model = tiny_model() if name == 'mdlm' else navira.load(pytestconfig.rootpath / 'tests' / 'golden' / name)
    model, asked, V = model.double().eval(), [], model.config.vocab_size
    kind, texts = type(model(torch.zeros(1, 10, dtype=torch.long))), np.random.default_rng(0).integers(0, 11, (9, 10))
    logits = kind.logits
    monkeypatch.setattr(kind, 'logits', lambda p, where: (asked.append(int(where.sum())), logits(p, where))[1])
    whole = evaluate_nelbo(model, texts, batch_size=4)
    assert len(asked) == 3 and sum(asked) > 21
    for rows in (1, 7):
        n = sum(asked); asked.clear()
        monkeypatch.setattr('navira.training.bound._LOGITS', rows * V + V // 2)
        assert evaluate_nelbo(model, texts, batch_size=4).value == pytest.approx(whole.value, rel=1e-6)
        assert max(asked) == rows and sum(asked) == n

def test_characters_are_those_of_the_text_where_they_were_counted(tmp_path):
    "A run without a count has what is decoded; without a file for validation it has the rate of the training text."
    tok, held = Tokenizer(models.WordLevel({'dog': 0, 'cat': 1}, unk_token='dog')), np.zeros((2, 5), np.int64)
    decoded, record = len(tok.decode([0] * 10)) / 10, dict(train=100, validation=20)
    assert characters(tmp_path, tok, held) == decoded
    for counted, chars in (({}, decoded), (dict(characters=dict(train=500, validation=120)), 6)):
        (tmp_path / 'tokens.json').write_text(json.dumps(record | counted))
        assert characters(tmp_path, tok, held) == chars
    (tmp_path / 'tokens.json').write_text(json.dumps(dict(train=100, characters=dict(train=500))))
    assert characters(tmp_path, tok, held) == 5
