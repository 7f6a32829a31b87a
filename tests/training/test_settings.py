"""The settings of a run: what comes through this door is a record or a sentence."""
import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from navira.training.settings import (
    AdaptConfig, CriticConfig, FinetuneConfig, SudokuConfig, TrainConfig, read_config)
from helpers.training import ROOT, one_thread  # noqa: F401

KINDS = [TrainConfig, SudokuConfig, AdaptConfig, FinetuneConfig, CriticConfig]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.floats(), max_size=3),
    st.just(10**400),
    st.sampled_from(['.001', '1e-3', '+5', '76_000_000', ' 2 ', 'inf', 'nan', '1.5', 'true']))

@settings(max_examples=300)
@given(st.data())
def test_any_setting_is_of_its_type_or_a_sentence_that_names_it(data):
    kind = data.draw(st.sampled_from(KINDS))
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
    name = data.draw(st.sampled_from(sorted(fields) + ['lrr', 'token']))
    value = data.draw(VALUES)
    given = dict(data='sudoku' if kind is SudokuConfig else 'd', model='m', out='no such folder')
    given = {k: v for k, v in given.items() if k in fields} | {name: value}
    try: cfg = read_config(kind, **given)
    except (ValueError, KeyError) as e:
        assert name in str(e) or 'missing' in str(e)
        return
    if value is None: return                                     # not given
    kept = getattr(cfg, name)
    types = str(fields[name].type).split(' | ')
    assert type(kept).__name__ in types

@settings(max_examples=100)
@given(st.text(max_size=30)
       | st.sampled_from(['[1, 2]', '5', '"lr"', 'null', '{"data":', '{"data": "d"}']))
def test_any_settings_file_is_settings_or_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.mktemp('c')
    for name in ('c.json', 'c.toml'):
        (path / name).write_text(text, encoding='utf-8', errors='ignore')
        try: read_config(TrainConfig, path / name)
        except (ValueError, KeyError): pass

@pytest.mark.parametrize('kind, given, match', [
    (TrainConfig, dict(lrr=1), "setting 'lrr': did you mean 'lr'"),
    (TrainConfig, dict(lr='fast'), "lr='fast': expected float"),
    (TrainConfig, dict(ema=1.5), 'ema=1.5: expected float from 0 to 1'),
    (TrainConfig, dict(vocab_size=100), 'vocab_size=100: expected int from 258'),
    (SudokuConfig, dict(data='books.txt'), "'books.txt': expected one of sudoku"),
    (AdaptConfig, {}, 'navira adapt: missing --model'),
    (TrainConfig, dict(kind='x'), "setting 'kind'"),
    (TrainConfig, dict(path='x'), "setting 'path'"),
    (FinetuneConfig, dict(head_steps=0, joint_steps=0), 'head_steps=0 and joint_steps=0'),
    (FinetuneConfig, dict(objective='prosecco'), "did you mean 'proseco'")])
def test_mistakes_are_named(kind, given, match):
    with pytest.raises((ValueError, KeyError), match=match):
        read_config(kind, **dict(data='d', out='o') | given)

def test_flags_go_over_the_file(tmp_path):
    (tmp_path / 'run.toml').write_text('data = "d"\nout = "o"\nfill = 4')
    cfg = read_config(FinetuneConfig, tmp_path / 'run.toml', drafts=3, fill=None)
    assert cfg == FinetuneConfig(data='d', out='o', fill=4, drafts=3)
    with pytest.raises(FileNotFoundError, match='did you mean .*run.toml'):
        read_config(TrainConfig, tmp_path / 'runs.toml')
    with pytest.raises(ValueError, match='missing --out'): read_config(TrainConfig, data='d')
    with pytest.raises(ValueError, match='missing --data and --out'): read_config(TrainConfig)
    (tmp_path / 'corpus.txt').write_text('hello')
    (tmp_path / 'dots.toml').write_text('.'.join('a' * 20_000) + ' = 1')     # a minute for tomllib
    for name, why in (('corpus.txt', '--data'), ('.', '--model'), ('dots.toml', 'at most 8000')):
        with pytest.raises(ValueError, match=why): read_config(TrainConfig, tmp_path / name)

def test_numbers_in_any_spelling():
    cfg = TrainConfig(data='d', out='o', tokens='76_000_000', batch_size='1e2', beta2='.9')
    assert (cfg.tokens, cfg.batch_size, cfg.beta2) == (76_000_000, 100, .9)
    one = FinetuneConfig(data='d', out='o', objective='proseco')
    assert (one.head_steps, one.joint_steps) == (0, 500)
    assert FinetuneConfig(data='d', out='o', objective='backplay').joint_steps == 0

def test_the_data_say_which_pretraining_it_is(tmp_path):
    assert type(read_config(TrainConfig, data='sudoku.txt', out='o')) is TrainConfig
    (tmp_path / 'c.toml').write_text('data = "sudoku:2x3"\ndim = 32')
    cfg = read_config(TrainConfig, tmp_path / 'c.toml', out='o')
    assert (type(cfg), cfg.length, cfg.dim) == (SudokuConfig, 36, 32)
