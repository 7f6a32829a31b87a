"""Metrics of every sample in a store, and only those that are missing."""
import signal
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

import navira.experiments.old_run as ex_run
import navira.experiments.samples as ex_samples
import navira.evaluation.diversity as metrics_diversity
from navira.evaluation.perplexity import eos_rules, perplexity
from navira.experiments.cells import digest
from navira.experiments.old_store import checked
from navira.experiments.old_run import Interrupted, store_lock
from navira.experiments.measure import (
    evaluate_store, likelihoods, measures, METRIC_RULES, of_sets, real_windows, SET, sound, Texts)
from helpers.experiments import (  # noqa: F401
    WORDS, cache, counted, home, judge, measured, one_thread_each, said, sixty, words)

MEASURED = {
    'entropy': 'b1262800cd5c',
    'repetition': '26b38fc12193',
    'perplexity': 'aa01ff9b9d39',
    'features': '3da89c32a78e',
    'sets': '106f83ad5dc3',
}

def test_each_cell_as_its_own_sweeps_want(home, judge, tmp_path):
    "One sweep has four texts judged and features at 8, the other all and no features: neither gets the other's"
    first = replace(
        home.sweep, name='first', entries=home.sweep.entries[:1], metrics=('perplexity',), features=8, scored=4
    )
    second = replace(home.sweep, name='second', entries=home.sweep.entries[2:], metrics=('perplexity', 'repetition'))
    mine = ex_run.run(first, tmp_path / 's', home.model).keys
    store = ex_run.run(second, tmp_path / 's', home.model)
    with pytest.warns(UserWarning, match='mauve, not measured everywhere'): evaluate_store(store, reference=judge)
    rows = {k: len(sound(store.metric(k, 'perplexity', judge.name))) for k in store.keys}
    assert set(mine) < set(store.keys) and all(n == (4 if k in mine else 10) for k, n in rows.items())
    assert all(store.metric(k, 'repetition').exists() == (k not in mine) for k in store.keys)
    assert {f.name.split('-')[0] for f in store.folder.glob('metrics/*-features-*')} == {
        k for k in mine if checked(store.cell(k))[1]['budget'] == 8
    }
    # asks for the first's cells too, and for all of their texts
    ex_run.run(replace(second, name='third', entries=first.entries), tmp_path / 's', home.model)
    with pytest.warns(UserWarning): evaluate_store(tmp_path / 's', reference=judge)
    assert all(len(sound(store.metric(k, 'perplexity', judge.name))) == 10 for k in store.keys)

def test_only_what_is_missing(measured, home, monkeypatch):
    rows = counted(monkeypatch)
    evaluate_store(measured); evaluate_store(measured)
    assert rows == [10, 10]
    ex_run.run(replace(home.sweep, entries=home.sweep.entries[:1], n=13), measured.folder, home.model)
    evaluate_store(measured)
    # the last batch of two was computed anew in a batch of four, to the same tokens
    assert rows[2:] == [3, 3]
    path = measured.metric(measured.keys[0], 'entropy')
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match='set aside'): evaluate_store(measured)
    assert rows[4:] == [13]
    for k in measured.keys:
        assert sound(measured.metric(k, 'entropy'))['entropy'].to_pylist() == pytest.approx(
            metrics_diversity.entropy(ex_samples.tokens(measured, k)).tolist()
        )

def test_evaluate_interrupted(measured, monkeypatch):
    f = measures['entropy']
    monkeypatch.setitem(measures, 'entropy', lambda w: signal.raise_signal(signal.SIGINT) or f(w))
    with pytest.raises(Interrupted, match='stopped after 1 of 2.*same command again'): evaluate_store(measured)
    monkeypatch.undo()
    rows = counted(monkeypatch)
    evaluate_store(measured)
    assert rows == [10]

def test_evaluate_and_sweep_keep_out_of_each_others_way(measured, home):
    "What is missing is measured under the lock; a store that lacks nothing is read without it"
    with store_lock(measured.folder), pytest.raises(ValueError, match='another sweep or evaluate is writing'):
        evaluate_store(measured)
    seen = []
    def meanwhile(what, done, total):
        if not done: return
        with pytest.raises(ValueError, match='another sweep or evaluate') as e:
            ex_run.run(replace(home.sweep, entries=home.sweep.entries[:1]), measured.folder, home.model)
        seen.append(e)
    evaluate_store(measured, progress=lambda what, done, total: what and meanwhile(what, done, total))
    assert seen
    with store_lock(measured.folder): evaluate_store(measured)
    (measured.folder / 'report').mkdir(); (measured.folder / 'report' / '.a.md.tmp').write_text('')
    ex_run.run(replace(home.sweep, entries=home.sweep.entries[:1]), measured.folder, home.model)
    assert (measured.folder / 'report' / '.a.md.tmp').exists()      # a report in the making is not a sweep's to tidy

def test_perplexity_under_both_rules(judge):
    "Judged once, the same numbers as judging twice"
    tok = words(); tok.add_special_tokens(['<|endoftext|>'])
    end = tok.token_to_id('<|endoftext|>')
    rows = torch.randint(0, 10, (6, 9), generator=torch.Generator().manual_seed(1))
    rows[1, 4] = rows[2, 2] = rows[2, 6] = rows[3, 0] = rows[4, 0] = rows[4, 5] = end
    w = Texts(rows, tok, judge)
    got = likelihoods(w)
    for name in eos_rules:
        want = perplexity(w.texts, judge, eos=name)
        assert got[f'nll_{name}'].tolist() == pytest.approx(want.nll.tolist(), rel=1e-5)
        assert got[f'weight_{name}'].tolist() == want.weight.tolist()

def test_no_mauve(home, sixty, judge, measured, monkeypatch, tmp_path):
    """Where only its budget asked for it, what it lacks is said and everything else is measured; asked for by name, it
    is an error"""
    st = ex_run.run(replace(home.sweep, budgets=(4,), features=4, metrics=('entropy',)), tmp_path / 's', home.model)
    with pytest.warns(
        UserWarning, match='mauve, not measured everywhere: MAUVE under .random. at L = 12 has no real text'
    ):
        evaluate_store(st, reference=judge)
    assert all(st.metric(k, 'entropy').exists() and not st.metric(k, 'mauve', 'random').exists() for k in st.keys)
    with pytest.raises(ValueError, match='name a corpus'): evaluate_store(st, ['mauve'], judge)
    st = ex_run.run(
        replace(
            home.sweep, budgets=(4,), features=4, real=str(sixty.folder.parent / 'real.txt'), metrics=('entropy',)
        ),
        st.folder,
        home.model,
    )
    with pytest.raises(ValueError, match='at least 50 samples'): evaluate_store(st, ['mauve'], judge)
    find = find_spec
    monkeypatch.setattr('navira.base.checks.find_spec', lambda m: None if m == 'mauve' else find(m))
    (sixty.metric(sixty.keys[0], 'mauve', 'random')).unlink(missing_ok=True)
    with pytest.warns(UserWarning, match='mauve-text'): evaluate_store(sixty, reference=judge)

def test_real_windows(home, tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text(' '.join(WORDS[i % 10] for i in range(240)))
    rows = real_windows(str(path), home.model.tokenizer, 12, 5)
    whole = real_windows(str(path), home.model.tokenizer, 12, 99)
    firsts = [home.model.tokenizer.token_to_id(WORDS[12 * i % 10]) for i in range(20)]
    assert rows.shape == (5, 12)
    assert torch.equal(rows, whole[:5])
    assert len(whole) == 20          # as many as there are; fewer are the first of more
    assert sorted(whole[:, 0].tolist()) == sorted(firsts)
    assert whole[:, 0].tolist() != firsts  # each once, and not in the order of the text
    with pytest.raises(ValueError, match='at least two windows of 200'):
        real_windows(str(path), home.model.tokenizer, 200, 5)
    with pytest.raises(FileNotFoundError, match="did you mean .*a.txt"):
        real_windows(str(tmp_path / 'b.txt'), home.model.tokenizer, 12, 5)

def test_metric_versions(judge):
    """What metrics say of fixed texts, to four digits: where it changes, METRIC_RULES of that metric goes up, or stores
    mix old numbers with new ones"""
    tok = words(); tok.add_special_tokens(['<|endoftext|>'])
    rows = torch.randint(0, 11, (60, 12), generator=torch.Generator().manual_seed(2))
    w = Texts(rows, tok, judge)
    said = {
        name: {k: f'{torch.as_tensor(v).double().abs().sum().item():.4g}' for k, v in f(w).items()}
        for name, f in measures.items()
    }
    said['sets'] = [[f'{row[k]:.4g}' for k in ('value', 'lo', 'hi')] for row in of_sets(rows).to_pylist()]
    now = {k: digest(v) for k, v in said.items()}
    assert now == MEASURED and {k: v for k, v in METRIC_RULES.items() if v != 1} == dict(sets=2), f'MEASURED = {now}'

@pytest.mark.parametrize('n', [20, 29, 48, 64])
def test_groups_of_texts_are_of_one_size(n):
    "Self-BLEU grows with the size of a group, so texts that do not fill one are left out, and change nothing"
    rows = torch.randint(0, 11, (n, 12), generator=torch.Generator().manual_seed(3))
    full = n // SET * SET
    said, those = (
        [{k: v for k, v in row.items() if k != 'n'} for row in of_sets(x).to_pylist()] for x in (rows, rows[:full])
    )
    assert said == those and {row['groups'] for row in said} == {n // SET}

@pytest.mark.parametrize('scored', [0, -3, 1.5])
def test_scored_is_a_whole_number(measured, scored):
    with pytest.raises(ValueError, match='scored'): evaluate_store(measured, ['entropy'], scored=scored)

def test_a_reference_is_loaded_only_if_something_is_missing(measured, judge, monkeypatch):
    evaluate_store(measured, ['perplexity'], judge)
    for room in ('navira.evaluation.references', 'navira.experiments.measure'):
        monkeypatch.setattr(f'{room}.load_reference', lambda *a, **kw: pytest.fail('loaded'))
    evaluate_store(measured, ['perplexity'], 'random')

def test_damaged_cell_is_not_measured(measured):
    path = measured.cell(measured.keys[0])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.warns(UserWarning, match=f'{path.name}.*not measured'): evaluate_store(measured)
    assert measured.metric(measured.keys[1], 'entropy').exists()
    assert not measured.metric(measured.keys[0], 'entropy').exists()

def test_missing_reference_names_the_extra(measured, monkeypatch):
    monkeypatch.setattr('navira.base.checks.find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r'pip install "\.\[eval\]"'): evaluate_store(measured, ['perplexity'])
    evaluate_store(measured, ['entropy'])                     # needs none, loads none
