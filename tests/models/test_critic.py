"""A second network that judges tokens: its forward pass, its files, and where it is found."""
import json, math

import pytest
import torch

from navira.models.critic import Critic
from navira.models.dit import n_params
from navira.peers.critics import token_critic
from helpers.checkpoints import no_grad, noisy, same  # noqa: F401
from helpers.training import one_thread  # noqa: F401
from toys import critic_like, small_lm

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


def test_a_critic_starts_from_the_model():
    lm = small_lm()
    c = Critic.of(lm, 1)
    assert torch.equal(c.backbone.vocab_embed.embedding, lm.backbone.vocab_embed.embedding)
    assert c.backbone.vocab_embed.embedding is not lm.backbone.vocab_embed.embedding
    for k, v in c.backbone.blocks[0].state_dict().items(): assert torch.equal(v, lm.backbone.blocks[0].state_dict()[k])
    assert len(c.backbone.blocks) == 1 and (c(torch.zeros(2, 5, dtype=torch.long)).quality() == 0).all()
    with pytest.raises(ValueError, match='n_blocks=3: .* from 1 to 2'): Critic.of(lm, 3)
    with pytest.raises(ValueError, match='13 positions'): c(torch.zeros(1, 13, dtype=torch.long))


def test_saved_and_loaded(tmp_path):
    lm = small_lm()
    c, x = critic_like(lm), torch.randint(0, 10, (3, 12))
    c.save(tmp_path / 'a')
    assert torch.equal(Critic.load(tmp_path / 'a')(x).quality(), c(x).quality())
    c.save(tmp_path / 'b', torch.bfloat16)
    back = Critic.load(tmp_path / 'b')
    assert back.backbone.vocab_embed.embedding.dtype == torch.float32
    assert torch.allclose(back(x).quality(), c(x).quality(), atol=.3)
    (tmp_path / 'b' / 'critic.safetensors').write_bytes((tmp_path / 'b' / 'critic.safetensors').read_bytes()[:99])
    with pytest.raises(ValueError, match='critic.safetensors: not a readable'): Critic.load(tmp_path / 'b')
    critic_like(lm, n_blocks=1).save(tmp_path / 'c')
    (tmp_path / 'a' / 'critic.safetensors').write_bytes((tmp_path / 'c' / 'critic.safetensors').read_bytes())
    with pytest.raises(ValueError, match='not the weights of this critic. missing'): Critic.load(tmp_path / 'a')


def test_no_critic_says_how_to_train_one(tmp_path, monkeypatch):
    (tmp_path / 'critics').mkdir()
    with pytest.raises(FileNotFoundError, match='no critic.safetensors .*navira critic --data'):
        Critic.load(tmp_path / 'critics')
    with pytest.raises(FileNotFoundError, match="did you mean '.*critics'"): token_critic(str(tmp_path / 'critcs'))
    monkeypatch.setattr('navira.models.sources.WEIGHTS', tmp_path)
    for make in (Critic.load, token_critic):
        with pytest.raises(FileNotFoundError, match='no embedded critic; train one with `navira critic'): make()


def test_the_embedded_critic_is_trained_and_goes_with_the_embedded_model():
    import navira
    from navira.models.sources import WEIGHTS
    lm, record = navira.load(), json.loads((WEIGHTS / 'critic-training.json').read_text())
    rule = navira.policy('token-critic')
    rule.step.fits(lm, lm.length)
    assert record['parameters'] == n_params(rule.step.critic)
    text = lm.tokenizer.encode('It was a fine morning, and the old man walked slowly down the road to the village.').ids
    x = torch.tensor([text] * len(text))
    at = torch.randperm(len(text), generator=torch.Generator().manual_seed(0))[:20]
    for b, i in enumerate(at): x[b, i] = 2000 + 37 * b                                     # one wrong token a row
    g = rule.step.critic(x[:len(at)]).quality()
    worse = torch.stack([(g[b] > g[b, i]).float().mean() for b, i in enumerate(at)])
    assert worse.mean() > .6                                                               # .5 if it rated at random
    assert not (navira.sample(lm, rule, 4, 2).tokens == lm.mask_id).any()


def test_the_rating_does_not_hang_on_the_batch():
    c, x = critic_like(small_lm()), torch.randint(0, 10, (4, 12))
    torch.testing.assert_close(torch.cat([c(r[None]).quality() for r in x]), c(x).quality(), atol=1e-5, rtol=1e-5)
