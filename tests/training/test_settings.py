"""The settings of a run: what comes through this door is a record or a sentence."""
import pytest
from hypothesis import given, settings, strategies as st

from navira.base.checks import declared
from navira.training.settings import (
    AdaptConfig, CriticConfig, FinetuneConfig, read_config, TrainConfig)

KINDS = [TrainConfig, AdaptConfig, FinetuneConfig, CriticConfig]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.floats(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers()),
    st.sampled_from(['1e-3', 'inf', 'true', 10**400]))

@settings(max_examples=300)
@given(st.data())
def test_any_setting_is_of_its_type_or_a_sentence_that_names_it(data):
    kind = data.draw(st.sampled_from(KINDS))
    known = declared(kind)
    name = data.draw(st.sampled_from([*known, 'lrr', 'token']))
    value = data.draw(VALUES)
    given = {k: v for k, v in dict(data='d', model='m', out='no such').items() if k in known}
    try: kept = vars(read_config(kind, **given | {name: value})).get(name)
    except (ValueError, KeyError) as e:
        assert name in str(e) or 'missing' in str(e) or name == 'hyper'
    else: assert value is None or isinstance(kept, (bool, int, float, str, dict))

@pytest.mark.parametrize('kind, given, match', [
    (TrainConfig, dict(precision='fp64'), "'fp64': did you mean 'fp32'"),
    (TrainConfig, dict(data=None, out=None), 'missing --data and --out'),
    (TrainConfig, dict(data='sudoku:2x4'), "did you mean 'sudoku:2x3'"),
    (FinetuneConfig, dict(objective='proseco', joint_steps=0), "nothing to train with.*proseco"),
    (FinetuneConfig, dict(objective='prosecco'), "did you mean 'proseco'"),
    (FinetuneConfig, dict(fil=4), "setting 'fil': did you mean 'fill'")])
def test_mistakes_are_named(kind, given, match):
    with pytest.raises((ValueError, KeyError), match=match):
        read_config(kind, **dict(data='d', out='o') | given)

def test_a_parameter_of_an_objective_is_in_a_file_or_typed(tmp_path):
    "In a table, or as earlier versions wrote it; what is typed comes last."
    for text in ('[hyper]\nfill = 4\ndrafts = 2', 'fill = 4\ndrafts = 2'):
        (tmp_path / 'run.toml').write_text(f'data = "d"\nout = "o"\nbatch_size = 8\n{text}')
        cfg = read_config(FinetuneConfig, tmp_path / 'run.toml', drafts=3, fill=None)
        assert cfg.hyper == dict(fill=4, drafts=3, nucleus=.9, mdlm_weight=.5)
        assert cfg.batch_size == 8
    with pytest.raises(KeyError, match="prism: parameter 'lr'"):
        FinetuneConfig(data='d', out='o', hyper=dict(lr=1))

@pytest.mark.parametrize('name, text, match', [
    ('runs.toml', None, 'did you mean .*run.toml'), ('corpus.txt', 'hello', '--data'),
    ('cut.toml', 'data = "', 'cut.toml: '), ('list.toml', 'hyper = 3', 'hyper=3: expected'),
    ('.', None, '--model'), ('dots.toml', '.'.join('a' * 20_000) + ' = 1', '300 dots')])
def test_a_file_that_holds_no_settings_is_named(name, text, match, tmp_path):
    (tmp_path / 'run.toml').write_text('data = "d"')
    if text: (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=match): read_config(FinetuneConfig, tmp_path / name)
