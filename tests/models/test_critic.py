"""A second network that judges tokens: its forward pass, its files, and where it is found."""
import json, math

import torch

import navira
from navira.models.critic import Critic, find_critic
from navira.models.dit import n_params
from navira.models.checkpoints import WEIGHTS
from navira.peers.critics import token_critic
from helpers.checkpoints import no_grad, same  # noqa: F401
from helpers.sample_api import says
from toys import critic_like, small_lm

def test_a_critic_starts_from_the_model():
    lm, x = small_lm(), torch.zeros(2, 5, dtype=torch.long)
    c = Critic.of(lm, 1)
    assert len(c.backbone.blocks) == 1 and (c(x).quality() == 0).all()
    old = dict(lm.backbone.named_parameters())
    for k, p in c.backbone.named_parameters():
        if not k.startswith('output_layer.'): assert torch.equal(p, old[k]) and p is not old[k]
    with says(ValueError, 'n_blocks=3', 'at least 1 and at most 2'): Critic.of(lm, 3)
    with says(ValueError, '13 positions'): c(torch.zeros(1, 13, dtype=torch.long))

def test_saved_and_loaded(tmp_path):
    lm, x = small_lm(), torch.randint(0, 10, (3, 12))
    c = critic_like(lm)
    c.save(tmp_path / 'a')
    torch.testing.assert_close(Critic.load(tmp_path / 'a')(x).quality(), c(x).quality())
    c.bfloat16().save(tmp_path / 'b')
    assert Critic.load(tmp_path / 'b').backbone.vocab_embed.embedding.dtype == torch.float32

def test_files_that_are_no_critic(tmp_path):
    lm, file = small_lm(), tmp_path / 'critic.safetensors'
    critic_like(lm).save(tmp_path)
    whole, config = file.read_bytes(), (tmp_path / 'critic.json').read_text()
    file.write_bytes(whole[:99])
    with says(ValueError, 'critic.safetensors: '): Critic.load(tmp_path)
    critic_like(lm, n_blocks=1).save(tmp_path)
    (tmp_path / 'critic.json').write_text(config)
    with says(ValueError, 'critic.safetensors: ', 'Missing'):
        Critic.load(tmp_path)
    c = Critic.of(lm, 1)
    c.backbone.output_layer.linear.bias[0] = math.nan
    c.save(tmp_path)
    with says(ValueError, 'critic.safetensors: backbone.output_layer.linear.bias holds NaN'):
        Critic.load(tmp_path)


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
    lm, record = navira.load(), json.loads((WEIGHTS / 'critic-training.json').read_text())
    rule = navira.policy('token-critic')
    rule.step.fits(lm, lm.length)
    assert record['parameters'] == n_params(rule.step.critic)
    sentence = 'It was a fine morning, and the old man walked slowly down the road to the village.'
    text = lm.tokenizer.encode(sentence).ids
    at = torch.randperm(len(text), generator=torch.Generator().manual_seed(0))[:20]
    x = torch.tensor([text] * len(at))
    for b, i in enumerate(at): x[b, i] = 2000 + 37 * b                       # one wrong token a row
    g = rule.step.critic(x).quality()
    worse = torch.stack([(g[b] > g[b, i]).float().mean() for b, i in enumerate(at)])
    assert worse.mean() > .6                                                 # .5 at random
    assert not (navira.sample(lm, rule, 4, 2).tokens == lm.mask_id).any()
