"""The settings of a run: what comes through this door is a record or a sentence."""
import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from navira.training.settings import (
    AdaptConfig, CriticConfig, FinetuneConfig, SudokuConfig, TrainConfig, read_config)

KINDS = [TrainConfig, SudokuConfig, AdaptConfig, FinetuneConfig, CriticConfig]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.floats(), max_size=3),
    st.sampled_from(['.001', '1e-3', '+5', '76_000_000', ' 2 ', 'inf', 'nan', 'true', 10**400]))

@settings(max_examples=300)
@given(st.data())
def test_any_setting_is_of_its_type_or_a_sentence_that_names_it(data):
    kind = data.draw(st.sampled_from(KINDS))
    fields = {f.name: f for f in dataclasses.fields(kind)}
    name = data.draw(st.sampled_from(sorted(fields.keys() - {'hyper'}) + ['lrr', 'token']))
    value = data.draw(VALUES)
    given = dict(data='sudoku' if kind is SudokuConfig else 'd', model='m', out='no such folder')
    given = {k: v for k, v in given.items() if k in fields} | {name: value}
    try: kept = getattr(read_config(kind, **given), name, None)
    except (ValueError, KeyError) as e: assert name in str(e) or 'missing' in str(e)
    else: assert value is None or isinstance(kept, (bool, int, float, str))

@pytest.mark.parametrize('kind, given, match', [
    (TrainConfig, dict(lrr=1), "setting 'lrr': did you mean 'lr'"),
    (TrainConfig, dict(lr='fast'), "lr='fast': expected float"),
    (TrainConfig, dict(ema=1.5), 'ema=1.5: expected float from 0 to 1'),
    (TrainConfig, dict(vocab_size=100), 'vocab_size=100: expected int from 258'),
    (TrainConfig, dict(precision='fp64'), "'fp64': did you mean 'fp32'"),
    (TrainConfig, dict(data=None, out=None), 'missing --data and --out'),
    (TrainConfig, dict(kind='x'), "setting 'kind'"),
    (SudokuConfig, dict(data='books.txt'), "'books.txt': expected one of sudoku"),
    (AdaptConfig, {}, 'navira adapt: missing --model'),
    (FinetuneConfig, dict(head_steps=0, joint_steps=0), 'head_steps=0 and joint_steps=0'),
    (FinetuneConfig, dict(objective='prosecco'), "did you mean 'proseco'"),
    (FinetuneConfig, dict(fil=4), "setting 'fil': did you mean 'fill'"),
    (FinetuneConfig, dict(objective='cdlm', replaced=2), 'replaced=2: expected float')])
def test_mistakes_are_named(kind, given, match):
    with pytest.raises((ValueError, KeyError), match=match):
        read_config(kind, **dict(data='d', out='o') | given)

def test_a_parameter_of_an_objective_is_in_a_file_or_typed(tmp_path):
    "In a table, or as earlier versions wrote it; what is typed comes last, what a run has first."
    for text in ('[hyper]\nfill = 4\ndrafts = 2', 'fill = 4\ndrafts = 2'):
        (tmp_path / 'run.toml').write_text(f'data = "d"\nout = "o"\nbatch_size = 8\n{text}')
        cfg = read_config(FinetuneConfig, tmp_path / 'run.toml', drafts='3', fill=None)
        hyper = dict(fill=4, drafts=3, nucleus=.9, mdlm_weight=.5)
        assert cfg.hyper == hyper and cfg.batch_size == 8
        assert read_config(FinetuneConfig, data='d', out='o', hyper=hyper).hyper == hyper
    with pytest.raises(KeyError, match="prism: parameter 'lr'"):
        FinetuneConfig(data='d', out='o', hyper=dict(lr=1))

@pytest.mark.parametrize('name, text, match', [
    ('runs.toml', None, 'did you mean .*run.toml'), ('corpus.txt', 'hello', '--data'),
    ('list.json', '[1, 2]', 'expected settings by name'), ('cut.json', '{"data":', 'cut.json: '),
    ('.', None, '--model'), ('dots.toml', '.'.join('a' * 20_000) + ' = 1', 'at most 8000')])
def test_a_file_that_holds_no_settings_is_named(name, text, match, tmp_path):
    (tmp_path / 'run.toml').write_text('data = "d"')
    if text: (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        read_config(TrainConfig, tmp_path / name)

def test_an_objective_says_which_stages_it_has():
    steps = {name: FinetuneConfig(data='d', out='o', objective=name)
             for name in ('prism', 'backplay', 'proseco')}
    assert [(c.head_steps, c.joint_steps) for c in steps.values()] == [
        (1500, 500), (1500, 0), (0, 500)]

def test_the_data_say_which_pretraining_it_is(tmp_path):
    assert type(read_config(TrainConfig, data='sudoku.txt', out='o')) is TrainConfig
    (tmp_path / 'c.toml').write_text('data = "sudoku:2x3"\ndim = 32')
    cfg = read_config(TrainConfig, tmp_path / 'c.toml', out='o')
    assert (type(cfg), cfg.length, cfg.dim) == (SudokuConfig, 36, 32)
