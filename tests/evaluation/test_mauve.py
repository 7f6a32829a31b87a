"""MAUVE: how close is the set of samples to a set of human texts?"""
import json, math

import numpy as np
import pytest
import torch

from navira.evaluation.perplexity import Reference, perplexities, perplexity
from navira.evaluation.references import HUB
from navira.evaluation.diversity import Grouped
from navira.evaluation.mauve import features
from navira.experiments.cells import digest
from navira.experiments.store import open_store, read_table, write_table
from navira.experiments.measure import evaluate_store, METRIC_RULES, of_groups
from navira.experiments.frames import features_of, load_samples, reference_of, set_rows
from helpers.metrics import cli, llama, load, ref, texts, tokenizer, unshipped  # noqa: F401

def test_what_the_hubs_model_judged_is_read_by_the_name_that_was_given(unshipped, monkeypatch, ref, tmp_path, capfd):
    "Without the package results stand under the Hub's name, and 'smollm2' is what users and configurations still say"
    import pyarrow as pa
    for room in ('navira.evaluation.references', 'navira.evaluation.endpoints'):
        monkeypatch.setattr(f'{room}._from_name', lambda name, load: (ref.model, ref.tokenizer))
    code, out, err = cli(
        capfd, 'compare', '--policies', 'backbone', '--budgets', 2, '-n', 8, '--show', 0, '--out', tmp_path
    )
    assert not code and f'perplexity under {HUB}' in ' '.join(out.split()), err
    (cell,), (folder,) = json.loads((tmp_path/'compare.json').read_text())['cells'], tmp_path.glob('store-*')
    assert cell['perplexity'] > 1
    code, out, err = cli(capfd, 'report', folder, '--reference', 'smollm2')
    assert not code and 'written' in out, err
    st = open_store(folder); (key,) = st.keys
    assert reference_of(st) == reference_of(st, 'smollm2') == HUB
    with pytest.raises(KeyError, match="'smolm2'"): reference_of(st, 'smolm2')
    evaluate_store(st, 'features')
    assert st.record['config']['reference'] == 'smollm2'
    assert len(features_of(st, key)) == len(features_of(st, key, 'smollm2')) == 8
    table = pa.Table.from_pylist([of_groups('mauve', Grouped(np.array([0.4, 0.6]), 4), 8)])
    crc = read_table(st.cell(key), ['crc'])[0]['crc'].to_pylist()
    about = dict(key=key, metric='mauve', reference=HUB, of=digest(crc), real='')
    write_table(st.metric(key, 'mauve', HUB), table, about | dict(version=METRIC_RULES['mauve']))
    assert [r['value'] for r in set_rows(st, key)] == [.5] and load_samples(st).mauve.item() == .5

@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_a_reference_that_gives_no_numbers_says_so(value):
    "NaN would be stored as 'not judged'"
    m = llama(); r = Reference(m, tokenizer())
    with torch.no_grad(): m.model.norm.weight[0] = value
    for f in perplexity, lambda t, r: perplexities(t, r, batch_tokens=50), lambda t, r: features(r, t):
        with pytest.raises(ValueError, match='gives text [0-9]+ .*damaged'): f(texts(4), r)
