"""Rules for uniform noise are diffusers' schedulers, given the same numbers; every policy runs on a
network without a mask."""
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as hs

import frozen
from navira.base.noise import Noise
from navira.sampler.draws import logs
from navira.sampler.exact import Coins
from navira.sampler.guidance import guided
from navira.sampler.joint import JointForward
from navira.sampler.registry import policy
from navira.sampler.renoise import renoised
from navira.sampling import sample, states
from helpers.sample_api import says
from toys import llama, small_lm, Tiny

V, L = 5, 6

def scheduler(name, T, **kw):
    import diffusers
    out = getattr(diffusers, name)(num_inference_steps=T, **kw)
    out.set_timesteps(T)
    return out

class Numbers:
    "torch's random functions, with the numbers that a policy draws by in a step"
    def __init__(self, noise, i, model):
        self.of, self.model = lambda purpose: noise.uniform(i, purpose, L), model
        self.next = model.drawn(noise.uniform(i + 1, 'renoise', L))

    def multinomial(self, p, num_samples, generator=None, at=None):
        u = self.of('route' if p.shape[1] == 3 and V != 3 else 'token') if at is None else at
        u = u.reshape(-1)
        if p.shape[1] == 3: # to the prediction, stay, to a random token
            return torch.where(u < p[:, 0], 0, torch.where(u >= 1 - p[:, 2], 2, 1))[:, None]
        times = logs(u, torch.arange(p.shape[1])[None])
        return (p.double() / times).argmin(-1, keepdim=True)

    def randint(self, *a, **kw): return self.next

def logits_of(net, x): # without the mask
    return net(x).logits(torch.ones_like(x, dtype=torch.bool)).view(*x.shape, -1)[..., :V]

def canvases(net, rule, T, seed, rows=3):
    "The canvas before each step, and the state after it"
    model, noise = renoised(net), Noise(seed, torch.arange(rows))
    start = torch.full((rows, L), V)
    ran = list(states(rule, model, start, T, noise))
    def canvas(x, i): return torch.where(x == V, model.drawn(noise.uniform(i, 'renoise', L)), x)
    xs = [canvas(x, i) for i, x in enumerate([start, *(st.x for st in ran)])]
    return xs, ran, lambda i: Numbers(noise, i, model)

@given(hs.integers(0, 2**40), hs.integers(1, 6), hs.sampled_from([.5, 1.]))
def test_ddim_is_the_scheduler(seed, T, temperature):
    net, plan = Tiny(L, V, seed=seed % 97), scheduler('DiscreteDDIMScheduler', T)
    xs, _, numbers = canvases(net, policy('ddim', temperature=temperature), T, seed)
    for i in range(T):
        with patch.multiple(torch, multinomial=numbers(i).multinomial, randint=numbers(i).randint):
            out = plan.step(logits_of(net, xs[i]), i, xs[i], temperature=temperature)
        assert torch.equal(out.prev_sample, xs[i + 1])

NAMES = dict(margin='lowest_log_margin', max='lowest_maxprob', current='lowest_current_prob')

@given(hs.integers(0, 2**40), hs.integers(1, 4), hs.sampled_from([*NAMES]), hs.integers(1, 3))
def test_its_corrector_is_the_schedulers(seed, i, selection, k):
    net, T, tau = Tiny(L, V, seed=seed % 97), 5, .7
    plan = scheduler('DiscreteDDIMScheduler', T, corrector_k=k, corrector_selection_tau=tau,
                     corrector_selection=NAMES[selection])
    rule = policy('ddim', corrector_steps=1, corrector_k=k, selection=selection, tau=tau)
    xs, ran, numbers = canvases(net, rule, T, seed)
    model, at, st = renoised(net), [], ran[i - 1]
    own, chosen = numbers(i), plan._select_positions
    def select(x, logp, generator): at.append(chosen(x, logp, generator)); return at[0]
    def redraw(p, num_samples, generator=None):
        u = own.of('redraw 0').gather(1, at[0])
        return own.multinomial(p, 1, at=u)
    with patch.multiple(torch, multinomial=redraw,
                        rand=lambda *a, **kw: own.of('pick 0')):
        with patch.object(plan, '_select_positions', select):
            out = plan.step_correct(logits_of(net, xs[i]), i - 1, xs[i])
    after, _ = rule.step.correct(st, model, ~st.fixed, i / T, 0)
    assert torch.equal(torch.where(after.x == V, xs[i], after.x), out.prev_sample)

@given(hs.integers(0, 2**40), hs.integers(1, 5), hs.sampled_from([.1, 1., 3.]))
def test_entropy_bound_is_the_scheduler(seed, T, gamma):
    net, plan = Tiny(L, V, seed=seed % 97), scheduler('EntropyBoundScheduler', T,
                                                      entropy_bound=gamma)
    rule = policy('entropy-bound', gamma=gamma, sure=0.)
    xs, ran, numbers = canvases(net, rule, T, seed)
    for i in range(T):
        with patch.multiple(torch, multinomial=numbers(i).multinomial, randint=numbers(i).randint):
            out = plan.step(logits_of(net, xs[i]), i, xs[i])
        if i < T - 1: assert torch.equal(out.prev_sample, xs[i + 1])
        else: assert torch.equal(out.pred_logits.argmax(-1), ran[i].x)     # as transformers ends

class Biased(Coins):
    vocab_size = 3
    def __call__(self, x): return JointForward(x, torch.tensor([.6, .4, 0]).expand(*x.shape, 3))

@pytest.mark.parametrize('how, passes', [
    (dict(sure=0.), 12), (dict(sure=5.), 2), (dict(sure=5., stable=3), 4),
    (dict(sure=5., stable=0), 1)])
def test_a_text_that_is_sure_and_stable_ends(how, passes):
    out = sample(renoised(Biased(6)), 'entropy-bound', 12, 4, **how)
    assert (out.n_forward == passes).all() and (out.tokens == 0).all()

@pytest.mark.parametrize('name', sorted(set(frozen.registered()) - {'g-star', 'token-critic'}))
def test_every_policy_runs_without_a_mask(name):
    for net in small_lm(quality_blocks=None), llama():
        net.noise, seen = 'uniform', []
        hook = net.register_forward_pre_hook(lambda net, args: seen.append(args[0]))
        out = sample(net, name, 24, prompt=[[3, 10, 5], [7, 10, 10]], length=12, eos='keep')
        hook.remove()
        assert (out.tokens[:, 0] == torch.tensor([3, 7])).all() and out.tokens[0, 2] == 5
        assert (out.tokens != 10).all()
        assert not any((x == 10).any() for x in seen)

def test_a_model_says_how_many_symbols_there_are():
    with says(ValueError, 'Coins', 'vocab_size'): renoised(Coins(3))

@pytest.mark.parametrize('name', ['ddim', 'remdm-uniform'])
def test_a_bridge_needs_uniform_noise(name):
    with says(ValueError, 'has a mask', 'renoised'): sample(small_lm(), name, 12)

def test_a_mask_is_a_random_token_that_is_not_counted():
    net, where = Tiny(L, V, seed=1), torch.ones(2, L, dtype=torch.bool)
    model = renoised(net).starting(torch.full((2, L), V), torch.arange(2))
    x = torch.tensor([[0, 1, V, V, 2, 3], [V, 1, 1, 4, 0, 2]])
    p, seen, raw = model(x), model.read(x), logits_of(net, model.read(x)).double()
    alpha = (x != V).double().mean(1)[:, None, None]
    own = torch.nn.functional.one_hot(seen, V)
    without = (raw.softmax(-1) / (1 + V * alpha / (1 - alpha) * own))
    without = without / without.sum(-1, keepdim=True)
    got = {kind: getattr(p, kind)(where).view(2, L, -1)[..., :V].double().softmax(-1)
           for kind in ('raw', 'logits', 'left_out')}
    mask = (x == V)[..., None]
    assert torch.allclose(got['raw'], raw.softmax(-1), atol=1e-5)
    assert torch.allclose(got['left_out'], without, atol=1e-5)
    assert torch.allclose(got['logits'], torch.where(mask, without, raw.softmax(-1)), atol=1e-5)
    chance = without.gather(2, seen[..., None])[..., 0]
    assert torch.allclose(p.quality().double(), chance.logit(), atol=1e-3)

def test_tokens_that_are_shown_change_with_the_step_or_never():
    net, x = Tiny(L, V, seed=1), torch.full((2, L), V)
    for fresh in (True, False):
        model, seen = renoised(net, fresh), []
        for st in states(policy('backbone'), model, x, 4, Noise(0, torch.arange(2))):
            seen.append(model.at(st).read(x))
        assert all(torch.equal(seen[0], s) for s in seen) != fresh
    assert guided(renoised(net), 1.)(torch.tensor([[0, V, V, V, V, V]])).logits(
        (torch.tensor([0]), torch.tensor([1]))).isfinite()[0, :V].all()

def test_gidd_takes_its_noise_and_times_from_the_model():
    def ran(how={}, **config):
        net, times, x = small_lm(quality_blocks=None, **config), [], torch.full((2, 12), 10)
        net.register_forward_pre_hook(lambda net, args: times.extend(args[1:]))
        after = states(policy('gidd', **how), net, x, 4, Noise(0, torch.arange(2)))
        texts = torch.stack([x, *(st.x for st in after)])
        changed = (texts[:-1] != 10) & (texts[:-1] != texts[1:])
        return texts, changed, [t.tolist() for t in times]
    texts, changed, times = ran(p_uniform=.4)
    assert sum(times, []) == pytest.approx([1 - 1e-4] * 2 + [.75] * 2 + [.5] * 2 + [.25] * 2)
    masked = texts[1:] == 10
    assert (changed & masked).any() and (changed & ~masked).any() and (texts[-1] != 10).all()
    for how in {}, dict(top_p=.5), dict(top_k=1), dict(temperature=0.):      # masks alone
        assert not ran(how)[1].any() and (ran(how)[0][-1] != 10).all()
