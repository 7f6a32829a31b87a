"""Tokens, texts and trajectories of a store."""
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models

import navira.experiments.old_run as ex_run
import navira.experiments.samples as ex_samples
from navira.evaluation.trajectories import lifetime
from navira.experiments.old_sweep import Entry, Sweep
from navira.experiments.old_store import checked, open_store
from navira.experiments.samples import trajectory
from toys import small_lm
from helpers.experiments import WORDS, cache, foreign, home, one_thread_each, same, somebody  # noqa: F401

def test_a_damaged_tokenizer(home, tmp_path):
    "Named where it is read, written anew by the next sweep; another model's, or somebody's own file, is refused"
    store = ex_run.run(home.sweep, tmp_path / 'store', home.model)
    path, good = store.folder / 'tokenizer.json', (store.folder / 'tokenizer.json').read_bytes()
    for bad in (b'', b'{"model"', b'\xff', b'[]'):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match='tokenizer.json: not a readable tokenizer.*`navira sweep` command again'):
            ex_samples.texts(open_store(store.folder), store.keys[0])
        with pytest.warns(UserWarning, match='set aside as tokenizer.json.damaged'):
            ex_run.run(home.sweep, store.folder, home.model)
        assert Tokenizer.from_file(str(path)).get_vocab() == home.model.tokenizer.get_vocab()
    other = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS[::-1])}, unk_token='.'))
    other.save(str(path)); foreign = path.read_bytes()
    with pytest.raises(ValueError, match='tokenizer.json: not the tokenizer of the model'):
        ex_run.run(home.sweep, store.folder, home.model)
    (tmp_path / 'mine').mkdir()
    for mine in (foreign, b'notes'):
        (tmp_path / 'mine' / 'tokenizer.json').write_bytes(mine)
        with pytest.raises(ValueError, match='tokenizer.json: .*name another folder'):
            ex_run.run(home.sweep, tmp_path / 'mine', home.model)
        assert (tmp_path / 'mine' / 'tokenizer.json').read_bytes() == mine
    path.write_bytes(good); assert same(ex_run.run(home.sweep, store.folder, home.model), home.store)

def test_trace_asked_for_later(home, tmp_path):
    no = replace(home.sweep, entries=(replace(home.sweep.entries[0], trace=False),))
    store = ex_run.run(no, tmp_path / 'store', home.model)
    with pytest.raises(ValueError, match='without a trace'): trajectory(store, store.keys[0])
    ex_run.run(home.sweep, store.folder, home.model)
    assert same(store, home.store)

def test_a_trace_stays_when_its_cell_grows(home, tmp_path):
    entry = home.sweep.entries[0]
    ex_run.run(replace(home.sweep, entries=(entry,), n=6), tmp_path / 's', home.model)
    store = ex_run.run(replace(home.sweep, entries=(replace(entry, trace=False),)), tmp_path / 's', home.model)
    assert [trajectory(store, k)[0].shape[1] for k in store.keys] == [10, 10]
    gone, new = trajectory(store, store.keys[0])
    life = lifetime(gone, new)                     # of a store, without sampling anew
    assert life.n == 10 and len(life.steps) == new.sum() and life.ended.sum() == gone.sum() > 0

def test_again(home):
    key = next(k for k in home.store.keys if checked(home.store.cell(k))[1]['trace'])
    gone, new = trajectory(home.store, key)
    for row in (0, 9):
        res, at = ex_samples.again(home.store, key, row, home.model)
        assert torch.equal(res.tokens[at], ex_samples.tokens(home.store, key)[row])
        assert torch.equal(res.trace.remasked[:, at], gone[:, row])
        assert torch.equal(res.trace.unmasked[:, at], new[:, row])
    with pytest.raises(ValueError, match='made by the model'): ex_samples.again(home.store, key, 0, small_lm(seed=4))
    with pytest.raises(ValueError, match='row=10'): ex_samples.again(home.store, key, 10, home.model)

def test_a_store_does_not_go_on_with_a_policy_whose_code_has_changed(tmp_path, somebody):
    sweep, model = Sweep((Entry('somebodys'),), budgets=(4,), n=4, metrics=('entropy',)), small_lm(seed=3)
    run = lambda: ex_run.run(sweep, tmp_path / 'store', model)
    somebody(); st = run(); before = ex_samples.tokens(st, st.keys[0])
    # `st.i` is not the `i` of the notebook
    for same in (dict(comment='# in other words'), dict(beside='i, st = 7, None')):
        somebody(**same); assert torch.equal(ex_samples.tokens(run(), st.keys[0]), before)
    # a number beside it, a method of a class, a number in it
    for change in (dict(scale=2.), dict(sign='-'), dict(weight=2.)):
        somebody(**change)
        with pytest.raises(ValueError, match="'somebodys' as it was: its code has changed"): run()
    somebody(); run()
