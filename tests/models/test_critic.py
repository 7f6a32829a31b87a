"""A second network that judges tokens: its forward pass, its files, and where it is found."""
import math

import pytest
from helpers.checkpoints import no_grad, noisy, same  # noqa: F401

def test_a_critics_run_finds_its_critic(tmp_path):
    from navira.models.critic import Critic, find_critic
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="no critic/critic.safetensors yet"): find_critic(tmp_path)
    critic = Critic.of(noisy(), 1)
    critic.save(tmp_path / "critic")
    assert find_critic(tmp_path) == tmp_path / "critic" and same(Critic.load(tmp_path), critic)

def test_a_critic_that_is_not_finite_is_refused(tmp_path):
    from navira.models.critic import Critic
    critic = Critic.of(noisy(), 1)
    critic.backbone.output_layer.linear.bias[0] = math.nan
    critic.save(tmp_path)
    with pytest.raises(ValueError, match="critic.safetensors: backbone.output_layer.linear.bias holds NaN"):
        Critic.load(tmp_path)
