"""Is a text repetitive? Are the texts of a set alike?"""
import math

import numpy as np
import pytest
import torch

from navira.base.stats import bootstrap
from navira.evaluation.perplexity import perplexity
from navira.evaluation.diversity import entropy
from helpers.metrics import ref  # noqa: F401

def test_bad_input(ref):
    for bad, what in [
        ('a text', 'list of strings'),
        ([], 'at least 1'),
        (['a', None], 'text 1 is None'),
        ([b'a'], 'bytes'),
    ]:
        with pytest.raises(ValueError, match=what):
            perplexity(bad, ref)
    with pytest.raises(KeyError, match="did you mean 'stop'"): perplexity(['w1'], ref, eos='stp')
    for kw in dict(max_length=1), dict(batch_tokens=0):
        with pytest.raises(ValueError, match='expected at least'): perplexity(['w1 w2'], ref, **kw)
    for kw in dict(n_boot=0), dict(level=1.):
        with pytest.raises(ValueError): bootstrap([1., 2.], **kw)
    with pytest.raises(KeyError, match="did you mean 'percentile'"): bootstrap([1., 2.], kind='percentiles')
    for a in ([],), ([1.], [1., 2.]):
        with pytest.raises(ValueError): bootstrap(*a)
    for bad in [], [[]], [[.5]], torch.zeros(2, 3, 4, dtype=torch.long):
        with pytest.raises(ValueError): entropy(bad)

def test_entropy():
    x = torch.tensor([[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 2, 2], [1, 1, 1, 2]])
    h = -(.75 * math.log(.75) + .25 * math.log(.25))
    np.testing.assert_allclose(entropy(x), [0, math.log(4), math.log(2), h], atol=1e-12)
    np.testing.assert_allclose(entropy([[5], [1, 2, 3], np.array([0, 0])]), [0, math.log(3), 0], atol=1e-12)
    y = torch.randint(0, 50, (20, 128), generator=torch.Generator().manual_seed(0))
    assert ((entropy(y) >= 0) & (entropy(y) <= math.log(128))).all()
    np.testing.assert_allclose(entropy(y), entropy(y[:, torch.randperm(128)]), atol=1e-12)
