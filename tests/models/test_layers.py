"""The sizes of a network, and which of them are refused."""
import pytest

from navira.models.layers import Config

@pytest.mark.parametrize(
    "bad",
    [
        dict(vocab_size=0), dict(n_heads=5), dict(n_blocks=1.5), dict(dropout=1.0), dict(time_conditioning=True),
        dict(mask_id=50258), dict(quality_blocks=2)],
)
def test_config_is_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))): Config(**bad)
