"""A second network that judges tokens: its files, and where it is found."""
import math

import torch

import navira
from navira.models.critic import Critic, find_critic
from navira.peers.critics import token_critic
from helpers.checkpoints import no_grad, same  # noqa: F401
from helpers.sample_api import says
from toys import small_lm

def test_files_that_are_no_critic(tmp_path):
    lm, file = small_lm(), tmp_path / 'critic.safetensors'
    c = Critic.of(lm, 1)
    with says(ValueError, 'n_blocks=3', 'at least 1 and at most 2'): Critic.of(lm, 3)
    with says(ValueError, '13 positions'): c(torch.zeros(1, 13, dtype=torch.long))
    c.backbone.output_layer.linear.bias[0] = math.nan
    c.save(tmp_path)
    with says(ValueError, 'critic.safetensors: backbone.output_layer.linear.bias holds NaN'):
        Critic.load(tmp_path)
    file.write_bytes(file.read_bytes()[:99])
    with says(ValueError, 'critic.safetensors: '): Critic.load(tmp_path)

def test_where_a_critic_is_found(tmp_path, monkeypatch):
    run = tmp_path / 'critics'
    run.mkdir()
    with says(FileNotFoundError, 'no critic.safetensors', 'navira critic --data'): Critic.load(run)
    (run / 'run.json').write_text('{}')
    with says(FileNotFoundError, 'no critic/critic.safetensors yet'): find_critic(run)
    critic = Critic.of(small_lm(), 1)
    critic.save(run / 'critic')
    assert find_critic(run) == run / 'critic' and same(Critic.load(run), critic)
    with says(FileNotFoundError, 'did you mean', 'critics'): token_critic(str(tmp_path / 'critcs'))
    monkeypatch.setattr('navira.models.checkpoints.WEIGHTS', tmp_path)
    for make in (Critic.load, token_critic):
        with says(FileNotFoundError, 'train one with `navira critic'): make()

def test_the_embedded_critic_is_trained_and_goes_with_the_embedded_model():
    lm, rule = navira.load(), navira.policy('token-critic')
    rule.step.fits(lm, lm.length)
    sentence = 'It was a fine morning, and the old man walked slowly down the road to the village.'
    text = torch.tensor(lm.tokenizer.encode(sentence).ids)
    n = len(text)
    wrong = torch.arange(2000, 2000 + n)                                # another in each row
    g = rule.step.critic(torch.where(torch.eye(n) > 0, wrong, text)).quality()
    assert (g > g.diagonal()[:, None]).float().mean() > .6              # .5 at random
