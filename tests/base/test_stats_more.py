"""How sure is a number? Bootstrap intervals, and the t distribution behind them."""
import math

import pytest
import torch
from scipy import stats

from navira.base.stats import Ratio, bootstrap, student_t

# --- intervals ------------------------------------------------------------------------------------
def test_student_quantiles():
    for df in [*range(1, 40), 99, 100, 999]:
        for level in 0.1, 0.5, 0.9, 0.95, 0.999:
            assert student_t(level, df) == pytest.approx(stats.t.ppf((1 + level) / 2, df), rel=1e-7)

def test_ratio():
    part, whole = torch.tensor([1, 2, 0]), torch.tensor([2, 2, 0])      # the last sample had no chance
    r = Ratio(part, whole)
    assert r.value == 3/4 == float(r) and all(map(math.isnan, r.interval())) and repr(r) == 'Ratio(0.75, 3 samples)'
    r = Ratio(part.repeat(4), whole.repeat(4)); lo, hi = r.interval()
    assert (lo, hi) == bootstrap([1, 2, 0] * 4, [2, 2, 0] * 4) and lo < 3/4 < hi and '12 samples' in repr(r)
