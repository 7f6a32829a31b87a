"""Perplexity under a model behind an HTTP address."""
import io, json, math, shutil, sys
from contextlib import suppress

import pytest
import torch

from navira.evaluation.perplexity import Reference
from navira.evaluation.references import HUB, reference_name
from navira.evaluation.endpoints import Endpoint
from navira.experiments.sweep import Entry, Sweep
from navira.experiments.measure import Judge
from navira.experiments.costs import judging
from helpers.metrics import load, ref, saved, tokenizer, unshipped  # noqa: F401

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
