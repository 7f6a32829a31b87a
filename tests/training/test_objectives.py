"""What is minimised: the likelihood bound, the quality head, the critic, and the errors of the
model's own text."""
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from navira.diffusion import nucleus
from navira.models.dit import with_head
from navira.training.data import keyed
from navira.training.objectives import (
    backplay, cdlm, masked_ce, mdlm, prism, proseco, reflective, sedd, t2t)
from helpers.training import moved, one_thread, tiny_model  # noqa: F401

class Told(nn.Module):
    "Says what it is told; remembers what it was asked."
    mask_id, prompt = 11, 0
    def __init__(self): super().__init__(); self.asked, self.graded = [], []
    def forward(self, y):
        self.asked.append(y); self.graded.append(torch.zeros(y.shape,
            requires_grad=True)); self.g = self.graded[-1]
        return self
    def logits(self, where): return torch.zeros(int(where.sum()), 12).index_fill(1,
        torch.tensor(11), -torch.inf)
    def quality(self): return self.g

def test_prism_judges_only_what_it_filled():
    told, x = Told(), torch.randint(0, 11, (8, 10), generator=torch.Generator().manual_seed(2))
    objective = prism(told, fill=3, drafts=2, p=1., joint=False)
    z, t, keys, u = objective.noise(x, keyed(0, 0, 1))
    objective(x, z, t, keys, u)['loss'].backward()
    z2, y = told.asked
    z3 = z.repeat_interleave(2, 0)
    assert torch.equal(z2, z) and y.shape == (16, 10)
    # judged = newly filled
    assert torch.equal(told.g.grad != 0, y != z3)
    # k, or all there are
    assert torch.equal((y != z3).sum(1), (z3 == 11).sum(1).clamp(max=3))
    # what was visible stays
    assert torch.equal(y[z3 != 11], z3[z3 != 11])
    both = (y[0::2] != 11) & (y[1::2] != 11)
    # one draw for all drafts
    assert torch.equal(y[0::2][both], y[1::2][both])
    # plain mean: sigmoid(0) - right, over n
    n = (y != z3).sum()
    torch.testing.assert_close(told.g.grad[y != z3],
                               (.5 - (y == x.repeat_interleave(2, 0))[y != z3].float()) / n)

def test_levels_of_the_two_texts():
    """t is uniform; t' is uniform between k / L and 1 - t, and t + t' the share of masks in the
    earlier text, which has no other token."""
    L, k, model = 400, 40, Told()
    z, early, _, _ = backplay(model, k).noise(torch.zeros(4000, L, dtype=torch.long), keyed(0, 0))
    assert (early[z == 11] == 11).all() and set(early.unique().tolist()) == {0, 11}
    t, both = (z == 11).double().mean(1), (early == 11).double().mean(1)
    assert abs(t.mean() - .5) < .01 and abs(t.quantile(.1) - .1) < .02
    some = (t > .45) & (t < .55)
    assert abs(both[some].mean() - (t[some] + (.1 + 1 - t[some]) / 2).mean()) < .02
    assert abs(both[some].quantile(.1) - .64) < .03 and abs(both[some].quantile(.9) - .96) < .03

def test_backplay_is_its_algorithm_written_out():
    """A row at a time: draw at the earlier text's masks, keep the k surest, put them into the
    later, ask of all tokens."""
    model = tiny_model()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    objective, M = backplay(model.eval(), fill=2, p=.9), model.mask_id
    x = torch.randint(0, M, (5, 8), generator=torch.Generator().manual_seed(2))
    z, early, u, ties = objective.noise(x, keyed(0, 0, 1))
    losses = []
    for row, late, first, uniform, tie in zip(x, z, early, u, ties):
        at = [i for i in range(8) if first[i] == M]
        masked = (first == M)[None]
        tokens, q = nucleus(.9)(model(first[None]).logits(masked), uniform[masked[0]])
        kept = sorted(range(len(at)), key=lambda j: (-round(q[j].item(), 4), tie[at[j]]))[:2]
        y = late.clone()
        for j in kept: y[at[j]] = tokens[j]
        g = model(y[None]).quality()[0].sigmoid().tolist()
        losses += [-math.log(g[i] if y[i] == row[i] else 1 - g[i]) for i in range(8) if y[i] != M]
    assert objective(x, z, early, u,
                     ties)['loss'].item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)

@pytest.mark.parametrize('make',
                         [lambda m: prism(m, fill=3, drafts=2), lambda m: backplay(m, fill=3)])
def test_drafts_are_drawn_without_dropout_and_learned_from_with_it(make):
    """What the head is asked about does not depend on the mode, nor on dropout's random numbers;
    the mode stays."""
    model, asked = tiny_model(dropout=.5), []
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    x, objective = torch.randint(0, 11, (8, 10),
                                 generator=torch.Generator().manual_seed(2)), make(model)
    noise = objective.noise(x, keyed(0, 0, 1))
    model.register_forward_pre_hook(lambda m, args: asked.append((m.backbone.training, args[0])))
    losses = []
    for training in (False, True, True):
        model.train(training)
        losses.append(objective(x, *noise))
        assert all(m.training == training for m in model.modules())
    each = len(asked) // 3
    for i in range(each):
        assert all(torch.equal(asked[i][1], asked[i + n * each][1]) for n in (1, 2))
    assert not asked[0][0] and [t for t, _ in asked[-each:]] == [False] + [True] * (each - 1)
    assert len({v['loss'].item() for v in losses}) == 3

def test_the_drafts_take_no_gradient_away_under_autocast():
    """Autocast keeps the weights that it has cast, also those that were cast where no gradient is
    wanted."""
    model, x = tiny_model(), torch.randint(0, 11, (8, 10),
                                           generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    objective = prism(model, fill=3, drafts=2)
    with torch.autocast('cpu', torch.bfloat16):
        loss = objective(x, *objective.noise(x, keyed(0, 0, 1)))['loss']
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())

# Score entropy

@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.floats(-2, 2), st.integers(0, 2**31))
def test_score_entropy_is_its_sum_over_ratios(B, shift, seed):
    "A mask at a time, as the paper has it; at least MDLM's loss, and as much where ratios add up"
    model, L = headless(), 10
    model.backbone.output_layer.linear.bias.data += shift
    x = torch.randint(0, model.mask_id, (B, L), generator=torch.Generator().manual_seed(seed))
    z, t = sedd(model).noise(x, keyed(seed, 0, 1))
    every, V, entropy = torch.ones(1, L, dtype=torch.bool), model.mask_id, 0.
    with torch.no_grad():
        for row, noisy, level in zip(x, z, t.double().tolist()):
            ratio = (1 - level) / level                  # alpha / (1 - alpha)
            s = model(noisy[None]).logits(every)[:, :V].double().exp() * ratio / V
            for j in range(L):
                if noisy[j] != model.mask_id: continue
                one = s[j].sum() - ratio * s[j, row[j]].log() + ratio * (math.log(ratio) - 1)
                entropy += one.item() / (1 - level) / (B * L)
        out, bound = sedd(model)(x, z, t), mdlm(model)(x, z, t)['loss'].item()
    assert out['loss'].item() == pytest.approx(entropy, rel=1e-4, abs=1e-5)
    assert out['nelbo'].item() == pytest.approx(bound, rel=1e-5)
    assert out['loss'].item() >= bound - 1e-6

# ProSeCo

def headless(**kw): return moved(with_head(tiny_model(**kw), None))

@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.booleans(), st.booleans(), st.floats(0, 3), st.floats(.001, .9),
       st.integers(0, 2**31))
def test_proseco_is_its_equation_written_out(B, fill_all, mistakes_first, weight, t_min, seed):
    "A row, a position at a time, in plain numbers."
    model, L = headless(), 10
    objective = proseco(model, weight, t_min, fill_all, mistakes_first)
    x = torch.randint(0, model.mask_id, (B, L), generator=torch.Generator().manual_seed(seed))
    z, t = objective.noise(x, keyed(seed, 0, 1))
    every = torch.ones(1, L, dtype=torch.bool)
    nelbo = correction = 0.
    with torch.no_grad():
        for row, noisy, level in zip(x, z, t.tolist()):
            first = model(noisy[None]).logits(every).log_softmax(-1)
            y = [int(first[j].argmax()) if fill_all or noisy[j] == model.mask_id
                 else int(noisy[j]) for j in range(L)]
            second = model(torch.tensor([y])).logits(every).log_softmax(-1)
            for j in range(L):
                if noisy[j] == model.mask_id: nelbo -= first[j, row[j]].item() / level / (B * L)
                logp = second[j, row[j]].item()
                lost = 1 - math.exp(logp) if mistakes_first and y[j] == row[j] else -logp
                correction += lost / level / (B * L)
        out = objective(x, z, t)
    assert out['nelbo'].item() == pytest.approx(nelbo, rel=1e-4, abs=1e-6)
    assert out['correction'].item() == pytest.approx(correction, rel=1e-4, abs=1e-6)
    assert out['loss'].item() == pytest.approx(nelbo + weight * correction, rel=1e-4, abs=1e-6)

@pytest.mark.parametrize('fill_all', [False, True])
def test_no_gradient_flows_through_the_fill(fill_all):
    """The gradient is that of two losses on given inputs; all of the network learns, at seen tokens
    too."""
    model = headless()
    objective = proseco(model, .7, fill_all=fill_all)
    x = torch.randint(0, model.mask_id, (4, 10), generator=torch.Generator().manual_seed(2))
    z, t = objective.noise(x, keyed(0, 0, 1))
    masked, every = z == model.mask_id, torch.ones_like(z, dtype=torch.bool)
    with torch.no_grad(): y = model(z).logits(every).argmax(-1).view(z.shape)
    y = y if fill_all else torch.where(masked, y, z)
    parts = masked_ce(model(z).logits(masked), x, masked, t), masked_ce(model(y).logits(every),
        x, every, t)
    expect = torch.autograd.grad(parts[0] + .7 * parts[1], list(model.parameters()))
    found = torch.autograd.grad(objective(x, z, t)['loss'], list(model.parameters()))
    for a, b in zip(found, expect, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert a.any()

# CDLM, token editing, reflective masking

def written_out(model, y, answer): # -ln p of what each position of each row must answer, [B, L]
    every = torch.ones_like(y, dtype=torch.bool)
    p = model(y)
    out = p.project(p.h[every], every).view(*y.shape, -1)
    return -out.log_softmax(-1).gather(2, answer[..., None])[..., 0]

def without_mask(model, y, x):
    every = torch.ones_like(y, dtype=torch.bool)
    logp = model(y).logits(every).view(*y.shape, -1).log_softmax(-1)
    return -logp.gather(2, x[..., None])[..., 0]

cases = given(st.integers(1, 4), st.floats(0, 1), st.integers(0, 2**31))

def texts(model, B, seed):
    return torch.randint(0, model.mask_id, (B, 10), generator=torch.Generator().manual_seed(seed))

@settings(max_examples=30, deadline=None)
@cases
def test_cdlm_is_two_means(B, replaced, seed):
    model = headless()
    objective, x = cdlm(model, replaced, .7), texts(model, B, seed)
    y, new = objective.noise(x, keyed(seed, 0, 1))
    masked = y == model.mask_id
    assert not (new & masked).any() and (y == x)[~new & ~masked].all()
    with torch.no_grad(): ce, out = without_mask(model, y, x), objective(x, y, new)
    mean = lambda at: ce[at].mean().item() if at.any() else 0.
    assert out['loss'].item() == pytest.approx(mean(masked) + .7 * mean(new), rel=1e-4, abs=1e-6)

def test_cdlm_replaces_by_any_token_at_its_rate():
    model = headless()
    x = torch.zeros(4000, 10, dtype=torch.long)
    y, new = cdlm(model, .3).noise(x, keyed(0, 0, 1))
    shown = y != model.mask_id
    assert abs(new.sum() / shown.sum() - .3) < .015
    counts = torch.bincount(y[new], minlength=model.mask_id).double()
    assert len(counts) == model.mask_id and (counts / counts.mean() - 1).abs().max() < .15

@settings(max_examples=30, deadline=None)
@cases
def test_t2t_recovers_the_text_from_its_own_argmax(B, noise, seed):
    model = headless()
    objective, x = t2t(model, noise), texts(model, B, seed)
    z, t, given = objective.noise(x, keyed(seed, 0, 1))
    masked, draft = z == model.mask_id, given < 0
    assert not (draft & ~masked).any() and (given == z)[~masked].all()
    with torch.no_grad():
        best = model(z).logits(torch.ones_like(masked)).argmax(-1).view(z.shape)
        ce = without_mask(model, torch.where(draft, best, given), x)
        loss = (ce / t[:, None])[masked].sum() / x.numel()
        assert objective(x, z, t, given)['loss'].item() == pytest.approx(loss.item(), rel=1e-4)

def test_drafts_fill_all_shares_of_the_masks():
    "Of fully masked texts a uniform share is filled, and of that `noise` at random"
    model = headless()
    z, t, given = t2t(model, .1).noise(torch.zeros(4000, 10, dtype=torch.long), keyed(0, 0, 1))
    some = z == model.mask_id
    stay = (given == model.mask_id) & some
    assert abs(stay.sum() / some.sum() - .5) < .02
    assert abs((given[some & ~stay] >= 0).double().mean() - .1) < .01
    assert (((stay.sum(1) == 0) & (some.sum(1) > 7)).double().mean() > .01)

@settings(max_examples=30, deadline=None)
@cases
def test_reflective_is_one_cross_entropy_with_the_mask(B, keep, seed):
    model = moved(with_head(tiny_model(), 0))
    x = texts(model, B, seed)
    objective, read = reflective(model, 3, keep), []
    z, given, u = objective.noise(x, keyed(seed, 0, 1))
    hook = model.register_forward_pre_hook(lambda m, args: read.append(args[0]))
    with torch.no_grad(): out = objective(x, z, given, u)
    hook.remove()
    y, wrong, masked = read[1], given < 0, z == model.mask_id
    assert torch.equal(read[0], z) and (y == given)[~wrong].all()
    with torch.no_grad(): logits = model(z).logits(wrong)
    top = logits.scatter(1, x[wrong][:, None], -torch.inf).topk(3).indices
    assert (top == y[wrong][:, None]).any(1).all() and (y != x)[wrong].all()
    weight = torch.where(masked, 1., keep)
    with torch.no_grad(): ce = written_out(model, y, torch.where(wrong, model.mask_id, x))
    want = (weight * ce).sum() / max(1, weight.sum())
    assert out['loss'].item() == pytest.approx(want.item(), rel=1e-4, abs=1e-6)

@pytest.mark.parametrize('make', [
    mdlm, sedd, prism, backplay, lambda m: proseco(with_head(m, None)),
    lambda m: cdlm(with_head(m, None)),
    lambda m: t2t(with_head(m, None)), lambda m: reflective(with_head(m, 0))])
@pytest.mark.parametrize('t', [0., 1.])
def test_a_batch_without_masks_or_with_masks_alone_has_a_finite_loss(make, t):
    "Also where nothing is drawn and nothing is asked."
    objective, x = make(moved(tiny_model())), torch.zeros(2, 10, dtype=torch.long)
    noise = list(objective.noise(x, keyed(0, 0, 1)))
    noise[0] = torch.full_like(x, objective.model.mask_id) if t else x
    if make is backplay: noise[1] = noise[0]
    assert all(v.isfinite() for v in objective(x, *noise).values())
