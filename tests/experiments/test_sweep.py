"""The configuration of an experiment, and the cells it stands for."""
import pytest
from hypothesis import given, strategies as st

from navira.experiments.cells import cell_key
from navira.experiments.old_sweep import cells, read_sweep, Sweep
from helpers.experiments import cache, one_thread_each  # noqa: F401

def test_what_only_toml_can_say(tmp_path):
    "A date is no hyper-parameter, a table no list"
    for line, expected in (
        ('entries = {policy = "prism"}', "entries={'policy': 'prism'}: expected a list"),
        ('entries = ["prism"]', "entries: 'prism': expected a table"),
        (
            'entries = [{policy = "prism", eta = 2024-01-01}]',
            r'prism: eta=datetime.date\(2024, 1, 1\): expected a number',
        ),
        ('entries = [{policy = "prism", vary = {eta = [0.1, 10:00:00]}}]', 'prism: eta=datetime.time'),
        ('name = 2024-01-01\nentries = [{policy = "prism"}]', 'name=datetime.date.*expected a text'),
    ):
        (tmp_path / 'a.toml').write_text(line)
        with pytest.raises(ValueError, match=expected): cells(read_sweep(tmp_path / 'a.toml'))

@given(
    st.sampled_from(sorted(Sweep.__dataclass_fields__)),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.lists(st.integers(0, 3), max_size=2),
        st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
        st.dates(),
    ),
)
def test_any_setting_of_any_kind(setting, v):
    "Every value is taken, or refused in a sentence that names its setting"
    try: cells(read_sweep(dict(budgets=[4], entries=[dict(policy='prism')]) | {setting: v}))
    except (ValueError, KeyError) as e:
        assert setting.removesuffix('s') in str(e) and len(str(e)) > 20, (setting, v, e)

def test_broken_toml(tmp_path):
    (tmp_path / 'a.toml').write_text('n = [')
    with pytest.raises(ValueError, match='a.toml'): read_sweep(tmp_path / 'a.toml')
    (tmp_path / 'b.toml').write_bytes('n = 1 # caf\xe9'.encode('latin-1'))
    with pytest.raises(ValueError, match='not UTF-8 at byte'): read_sweep(tmp_path / 'b.toml')

def test_small_curves_and_ablations_can_share_a_store():
    three = [read_sweep(n) for n in ('small', 'curves', 'ablations')]
    assert len({(s.model, s.length, s.prompt, s.dtype, s.device, s.batch_size) for s in three}) == 1
    small, curves, _ = [{cell_key(c): c.label for c in cells(s)} for s in three]
    assert len(small.keys() & curves.keys()) >= 6 and all(small[k] == curves[k] for k in small.keys() & curves.keys())
