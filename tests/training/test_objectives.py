"""Every objective is its equation: loss and gradients, from the noise that it has drawn."""
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from navira.sampler.draws import nucleus
from navira.models.critic import Critic
from navira.models.dit import with_head
from navira.training import objectives
from navira.training.data import keyed
from helpers.training import moved, one_thread, tiny_model  # noqa: F401

M = 11     # the mask of `tiny_model`

def logits(model, y): # [B, L, V + 1]
    return model(y).logits(torch.ones_like(y, dtype=torch.bool)).view(*y.shape, -1)

def cost(model, y, x): # -ln p(x_j | y), [B, L]
    return -logits(model, y).log_softmax(-1).gather(2, x[..., None])[..., 0]

@torch.no_grad()
def drawn(model, z, u, p): # z with every mask filled from the nucleus
    masked = z == M
    tokens, _ = nucleus(p)(model(z).logits(masked), u[masked])
    return z.masked_scatter(masked, tokens)

@torch.no_grad()
def best(model, z): return logits(model, z).argmax(-1)

def mean(values): return values.sum() / max(1, len(values))

def judged(model, y, x, where): return bce(model(y).quality()[where], (x == y)[where].float())

def mdlm(model, x, z, t): return (cost(model, z, x) / t[:, None])[z == M].sum() / x.numel()

def sedd(model, x, z, t):
    "The sum over ratios, as the paper has it."
    ratio = ((1 - t) / t)[:, None]
    s = logits(model, z)[..., :M].double().exp() * ratio[..., None] / M
    one = s.sum(-1) - ratio * s.gather(2, x[..., None])[..., 0].log() + ratio * (ratio.log() - 1)
    return (one / (1 - t)[:, None])[z == M].sum() / x.numel()

def prism(model, x, z, t, keys, u, fill, drafts, nucleus, mdlm_weight):
    order = keys.masked_fill((z != M)[:, None], 2.).argsort(-1).argsort(-1)
    new = ((order < fill) & (z == M)[:, None]).flatten(0, 1)
    y = torch.where(new, *(a.repeat_interleave(drafts, 0)
                           for a in (drawn(model, z, u, nucleus), z)))
    head = judged(model, y, x.repeat_interleave(drafts, 0), new)
    return head + mdlm_weight * mdlm(model, x, z, t)

def proseco(model, x, z, t, mistakes_first):
    y = torch.where(z == M, best(model, z), z)
    second = cost(model, y, x)
    if mistakes_first: second = torch.where(y == x, 1 - (-second).exp(), second)
    return mdlm(model, x, z, t) + (second / t[:, None]).mean()

def cdlm(model, x, y, new, replaced):
    assert not (new & (y == M)).any() and (y == x)[~new & (y != M)].all()
    return mean(cost(model, y, x)[y == M]) + mean(cost(model, y, x)[new])

def t2t(model, x, z, t, given, noise):
    assert (given == z)[z != M].all()
    y = torch.where(given < 0, best(model, z), given)
    return (cost(model, y, x) / t[:, None])[z == M].sum() / x.numel()

def reflective(model, x, z, given, u, top_k):
    doubt = given < 0
    wrong = logits(model, z).detach().scatter(2, x[..., None], -torch.inf).topk(top_k).indices
    y = torch.where(doubt, wrong.gather(2, (u * top_k).long()[..., None])[..., 0], given)
    p = model(y)
    every = torch.ones_like(doubt)
    out = p.project(p.h[every], every).view(*y.shape, -1).log_softmax(-1)
    ce = -out.gather(2, torch.where(doubt, M, x)[..., None])[..., 0]
    return ce.mean()

CASES = [
    (mdlm, None, {}), (sedd, None, {}),
    (prism, 1, dict(fill=3, drafts=2, nucleus=.9, mdlm_weight=.5)),
    (proseco, None, dict(mistakes_first=False)), (proseco, None, dict(mistakes_first=True)),
    (cdlm, None, dict(replaced=.4)), (t2t, None, dict(noise=.3)),
    (reflective, 0, dict(top_k=3))]

def texts(B=6, L=10, seed=0):
    return torch.randint(0, M, (B, L), generator=torch.Generator().manual_seed(seed))

@pytest.mark.parametrize('written, head, params', CASES, ids=lambda v: getattr(v, '__name__', ''))
def test_an_objective_is_its_equation(written, head, params):
    "Gradients too, so that none flows through what is drawn, or through an argmax."
    for seed in range(3):
        model, x = moved(with_head(tiny_model(), head)), texts(seed=seed)
        objective = vars(objectives)[f'{written.__name__}_loss'](model, **params)
        noise = objective.noise(x, keyed(seed, 0, 1))
        expected, found = written(model, x, *noise, **params), objective(x, *noise)['loss']
        torch.testing.assert_close(found, expected.to(found), rtol=1e-4, atol=1e-5)
        weights = [*model.parameters()]
        for a, b in zip(*(torch.autograd.grad(loss, weights, allow_unused=True)
                          for loss in (found, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)

def test_a_critic_judges_the_fills_of_a_denoiser_that_does_not_learn():
    model, x = moved(tiny_model()), texts()
    critic = moved(Critic.of(model, 1))
    objective = objectives.prism_loss(critic, 99, nucleus=.7, denoiser=model).train()
    z, t, keys, u = objective.noise(x, keyed(0, 0, 1))
    loss = objective(x, z, t, keys, u)['loss']
    loss.backward()
    assert all(p.grad is None for p in model.parameters())
    expected = judged(critic, drawn(model, z, u, .7), x, z == M)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)

@pytest.mark.parametrize('written, head, params', CASES, ids=lambda v: getattr(v, '__name__', ''))
def test_a_batch_without_masks_or_with_masks_alone_has_a_finite_loss(written, head, params):
    make = vars(objectives)[f'{written.__name__}_loss']
    objective = make(moved(with_head(tiny_model(), head)), **params)
    x = torch.zeros(2, 10, dtype=torch.long)
    for z in (x, torch.full_like(x, M)):
        noise = list(objective.noise(x, keyed(0, 0, 1)))
        noise[0] = z
        assert all(v.isfinite() for v in objective(x, *noise).values())


def test_drafts_take_no_gradient_away_under_autocast():
    "Autocast keeps the weights that it has cast, also where no gradient was wanted."
    model = moved(tiny_model(), .1)
    objective = objectives.prism_loss(model, fill=3)
    with torch.autocast('cpu', torch.bfloat16):
        loss = objective(texts(), *objective.noise(texts(), keyed(0, 0, 1)))['loss']
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())

def test_cdlm_replaces_by_any_token_at_its_rate():
    y, new = objectives.cdlm_loss(tiny_model(), .3).noise(texts(4000), keyed(0, 0, 1))
    assert abs(new.sum() / (y != M).sum() - .3) < .015
    counts = torch.bincount(y[new], minlength=M).double()
    assert len(counts) == M and (counts / counts.mean() - 1).abs().max() < .15

def test_a_draft_fills_any_share_of_the_masks():
    z, _, given = objectives.t2t_loss(tiny_model(), .1).noise(texts(4000), keyed(0, 0, 1))
    masked, stay = z == M, given == M
    assert abs(stay.sum() / masked.sum() - .5) < .02
    assert abs((given[masked & ~stay] >= 0).double().mean() - .1) < .01
    assert ((stay.sum(1) == 0) & (masked.sum(1) > 7)).double().mean() > .01
