"""WINO against its loop written out, with a network whose shadows are computed by hand; what shadows know."""
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as hs

import navira
from navira.core import step
from navira.models.dit import places, shadows_see
from navira.models.layers import rotate
from navira.peers.shadow import wino
from navira.registry import policy
from navira.sampling import sample
from helpers.sample_api import says
from toys import Exact, random_joint, small_lm

L, M = 12, 10

def lm(seed=0, sharp=4., **kw):
    "Random weights, and sure of what it says"
    model = small_lm(seed, **kw).double()
    model.backbone.output_layer.linear.weight.mul_(sharp)
    return model

# --- the network with shadows, as one long sequence -------------------------------------------------------------------
def long_pass(model, x, block, together):
    """Logits of L tokens and of a shadow for each position of `block`, for one row: all in one sequence, with the mask
    of attention that the authors' code makes"""
    net, n = model.backbone, len(x)
    S = len(block)
    ids = torch.cat([x, torch.full((S,), model.mask_id)])
    where = torch.cat([torch.arange(n), torch.tensor(block).long()])
    sees = torch.ones(n + S, n + S, dtype=torch.bool)
    sees[:, n:] = False
    sees[n:, n:] = torch.ones(S, S) if together else torch.eye(S)
    for k, j in enumerate(block): sees[n + k, j] = False
    h = net.vocab_embed(ids[None])
    rope = None
    if net.place is None: rope = [a[where] for a in net.rotary_emb(n)]
    else: h = h + net.place()[where]
    c = torch.nn.functional.silu(net.sigma_map(torch.zeros(1)))
    for b in net.blocks:
        m = b.adaLN_modulation(c)[0].chunk(6)
        three = b.attn_qkv(b.norm1(h, m[0], m[1])).chunk(3, -1)
        q, k, v = (a.view(1, n + S, b.n_heads, -1).transpose(1, 2) for a in three)
        if rope is not None: q, k = rotate(q, *rope), rotate(k, *rope)
        a = (q @ k.mT / q.shape[-1] ** .5).masked_fill(~sees, -torch.inf).softmax(-1) @ v
        h = h + m[2] * b.attn_out(a.transpose(1, 2).flatten(2))
        h = h + m[5] * b.mlp(b.norm2(h, m[3], m[4]))
    out = net.output_layer(h, c)[0]
    out[:, model.mask_id] = -torch.inf
    return out[:n], out[n:]

def by_hand(model, x, T1, T2, length, together, most=20):
    "WINO's loop at temperature 0, for one row: the text, and the number of passes"
    x, n, P = x.clone(), 0, int((x != model.mask_id).sum())
    for b in range(P, len(x), length):
        block, last = list(range(b, min(b + length, len(x)))), 30
        while masks := [j for j in block if x[j] == model.mask_id]:
            plain, shades = long_pass(model, x, block, together)
            q = plain.softmax(-1)
            sure = sorted(masks, key=lambda j: -q[j].max().item())
            cap = min(max(7 * len(masks) // 10, 5), most)
            take = [j for j in sure if q[j].max() > T1][:cap] or sure[:1]
            low = {j: shades.softmax(-1)[k, x[j]].item() for k, j in enumerate(block) if j not in masks}
            low = sorted((j for j in low if low[j] < T2), key=low.get)[:last - 1] if len(take) > 1 else []
            for j in take: x[j] = q[j].argmax()
            for j in low: x[j] = model.mask_id
            last, n = len(take), n + 1
    return x, n

@settings(max_examples=25)
@given(hs.integers(0, 30), hs.sampled_from([.3, .5, .7]), hs.sampled_from([.2, .6, .9, 1.]),
       hs.sampled_from([3, 5, 12]), hs.booleans(), hs.integers(1, 5), hs.sampled_from([2, 3, 20]))
def test_it_is_the_loop_of_its_authors(seed, T1, T2, length, together, given_, most):
    model = lm(seed)
    x = torch.full((2, L), M)
    x[0, :given_], x[1, :7 - given_] = torch.arange(given_), torch.arange(7 - given_) + 3
    out = sample(model, 'wino', 1, prompt=x, threshold=T1, threshold_back=T2, block_length=length, max_accept=most,
                 shadows='together' if together else 'alone')
    for row, got, n in zip(x, out.tokens, out.n_forward):
        want, passes = by_hand(model, row, T1, T2, length, together, most)
        assert got.tolist() == want.tolist() and n == passes

def test_the_loop_revokes_in_these_cases():
    "Or the test above would see half of the rule"
    back, full = 0, 0
    for seed in range(8):
        out = sample(lm(seed), 'wino', 1, n=2, seed=seed, prompt=[1, 2], threshold=.3, trace=True)
        gone, new = out.trace.remasked.sum(2), out.trace.unmasked.sum(2)
        back, full = back + gone.sum(), full + (gone[1:] == new[:-1] - 1)[gone[1:] > 0].sum()
    assert back > 20 and full > 3                                          # and meets its bound

# --- shadows ----------------------------------------------------------------------------------------------------------
def masked_in_turn(model, x, where):
    rows, at = where.nonzero()[:, 0], where.nonzero()[:, 1:]
    alone = torch.arange(x.shape[1]) == at
    return model(torch.where(alone, model.mask_id, x[rows])).logits(alone)

@pytest.mark.parametrize('kw', [{}, dict(boxes=(2, 2), model_length=16)], ids=['text', 'grid'])
@pytest.mark.parametrize('together', [False, True])
def test_shadows_are_those_of_one_long_sequence(kw, together):
    "Whatever other rows ask for; and nobody reads them"
    model, g = lm(5, **kw), torch.Generator().manual_seed(0)
    n = model.length
    x = torch.randint(0, 11, (4, n), generator=g)
    where = torch.rand(4, n, generator=g) < torch.tensor([.1, .5, .9, 0.])[:, None]
    where[0, 3] = True
    p = model.shadow(x, where, together)
    got, at = p.left_out(where), where.nonzero()[:, 0]
    for b in range(3):
        plain, shades = long_pass(model, x[b], where[b].nonzero()[:, 0].tolist(), together)
        torch.testing.assert_close(got[at == b], shades, atol=1e-12, rtol=1e-12)
        some = where.clone(); some[b + 1:] = False; some[:b] = False
        torch.testing.assert_close(p.left_out(some), shades, atol=1e-12, rtol=1e-12)
    assert torch.equal(p.logits(where), model(x).logits(where))
    torch.testing.assert_close(p.logits(~where)[-n:], long_pass(model, x[3], [], together)[0], atol=1e-12, rtol=1e-12)

def test_what_a_shadow_knows():
    "At a mask, what the mask knows; in one block, what a pass that masks the token says; in more, nearly that"
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 11, (3, L), generator=g)
    every, masked = torch.ones_like(x, dtype=torch.bool), x == M
    for blocks in (1, 3):
        model = lm(4, n_blocks=blocks)
        p, truth = model.shadow(x, every), masked_in_turn(model, x, every).softmax(-1)
        torch.testing.assert_close(p.left_out(masked), model(x).logits(masked), atol=1e-12, rtol=1e-12)
        gap = (p.left_out(every).softmax(-1) - truth).abs().amax(-1).view(3, L)
        assert gap[masked].max() < 1e-12 and (gap[~masked].max() < 1e-12) == (blocks == 1)

def test_on_a_joint_they_are_the_conditionals():
    joint = random_joint(4, 3, seed=2)
    exact, x = Exact(joint), joint.outcomes[::7]
    every = torch.ones_like(x, dtype=torch.bool)
    got = joint.shadow(x, every).left_out(every).exp().view(*x.shape, 4)
    for row, q in zip(x.tolist(), got):
        for i in range(4): assert q[i, :3].tolist() == pytest.approx(exact.given(row, i).tolist(), abs=1e-12)

def test_helpers_fill_rows_up():
    where = torch.tensor([[True, False, True, False], [False, False, False, True]])
    at, real = places(where)
    assert at[0].tolist() == [0, 2] and at[1, 0] == 3 and real.tolist() == [[True, True], [True, False]]
    seen = shadows_see(at, real, 4, True).int().tolist()
    assert seen[0] == [[0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1]] and seen[1][0] == [1, 1, 1, 0, 1, 0]
    assert shadows_see(at, real, 4, False)[:, :, 4:].int().tolist() == [[[1, 0], [0, 1]]] * 2

@pytest.mark.parametrize('name', ['llada', 'bert', 'roberta', 'distilbert'])
def test_networks_of_the_transformers_library_have_them(pytestconfig, name):
    "Both ways in which they attend"
    model = navira.load(pytestconfig.rootpath / 'tests' / 'golden' / name)
    for kind in ('sdpa', 'eager'):
        model.net.set_attn_implementation(kind)
        x = torch.arange(20, 36).view(2, 8).clone()
        x[:, ::3] = model.mask_id
        every, masked = torch.ones_like(x, dtype=torch.bool), x == model.mask_id
        p, plain = model.shadow(x, every), model(x)
        close = dict(atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(p.logits(every), plain.logits(every), **close)
        torch.testing.assert_close(p.left_out(masked), plain.logits(masked), **close)
        off = (p.left_out(~masked).softmax(-1) - masked_in_turn(model, x, ~masked).softmax(-1)).abs().max()
        sees = (plain.logits(~masked).softmax(-1) - masked_in_turn(model, x, ~masked).softmax(-1)).abs().max()
        assert 0 < off < sees
        out = sample(model, 'wino', 1, prompt=[[20, 21], [22]], max_new_tokens=4, threshold=.01, eos='keep')
        assert (out.tokens != model.mask_id).all() and (out.n_forward <= 4).all()

# --- promises ---------------------------------------------------------------------------------------------------------
@settings(max_examples=20)
@given(hs.integers(0, 50), hs.floats(0., 1.), hs.floats(0., 1.), hs.sampled_from([None, 1, 4, 7]), hs.booleans())
def test_after_n_passes_n_tokens_stand(seed, T1, T2, length, together):
    model, x = lm(seed % 5), torch.full((3, L), M)
    x[1, [0, 5]], x[2, 2:9] = 1, 4
    out = sample(model, wino(T1, T2, length, temperature=1., shadows='together' if together else 'alone'), 1,
                 prompt=x, seed=seed, trace=True)
    free = (x == M).sum(1)
    assert (out.n_forward <= free).all() and torch.equal(out.tokens[x != M], x[x != M])
    for i, stand in enumerate((out.trace.x != M).sum(2)):
        assert (stand - (L - free) >= torch.minimum(torch.tensor(i), free)).all()
    if length:                                            # a block that is full stays as it is
        rank = (x == M).cumsum(1) - 1
        for a, b in zip(out.trace.x[:-1], out.trace.x[1:]):
            first = torch.where((a == M) & (x == M), rank // length, 99).amin(1, keepdim=True)
            done = rank // length < first
            assert torch.equal(a[done], b[done])

def test_nothing_is_revoked_by_a_step_of_one_or_below_no_threshold():
    model, how = lm(1), dict(n=8, temperature=1., trace=True, block_length=None)
    for kw in (dict(max_accept=1, threshold=.1), dict(threshold=1.), dict(threshold_back=0., threshold=.2)):
        assert not sample(model, 'wino', 1, **how, **kw).trace.remasked.any()
    same = [sample(model, name, 1, n=8, seed=4, block_length=4, threshold=.4, temperature=1., **kw)
            for name, kw in (('wino', dict(threshold_back=0.)), ('fast-dllm', {}))]
    assert torch.equal(same[0].tokens, same[1].tokens) and torch.equal(same[0].n_forward, same[1].n_forward)

def test_shadows_run_only_where_they_decide(monkeypatch):
    model, asked = lm(2), []
    whole = type(model).shadow
    def noted(self, x, where, *a): asked.append(where); return whole(self, x, where, *a)
    monkeypatch.setattr(type(model), 'shadow', noted)
    rule = wino(threshold=1., shadows='alone', block_length=4)
    st = navira.core.State.start(torch.full((2, L), M), M, L, navira.base.noise.Noise(0, torch.arange(2)))
    for i in range(L):
        before, st = st, step(rule, st, model)
        if i % 4 == 0: assert not asked                                    # a fresh block has nothing to revoke
        else:
            assert torch.equal(asked.pop(), before.committed & (torch.arange(L) // 4 == i // 4))
    assert not st.masked.any() and (st.memory['accepted'] == 1).all()

# --- refusals ---------------------------------------------------------------------------------------------------------
class Wrong:
    "Its shadows say something else than its masks"
    mask_id, length = M, L
    def __init__(self, model): self.model = model
    def __call__(self, x): return self.model(x)
    def shadow(self, x, where, together=False): return self.model.shadow((x + 1) % M, where, together)

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_a_model_in_16_bits_is_not_taken_for_a_wrong_one(dtype):
    model = lm(3).to(dtype)
    for how in (torch.autocast('cpu', dtype, enabled=False), torch.autocast('cpu', dtype)):
        with how: assert (sample(model, 'wino', 1, n=2, threshold=.3).tokens != M).all()
        model = model.float()

class Plain:
    mask_id, length = M, L
    def __call__(self, x): raise AssertionError('a pass before the refusal')

def test_a_model_without_shadows_is_refused_before_any_pass(pytestconfig):
    with says(ValueError, 'Plain has no `shadow`', 'such as fast-dllm'): sample(Plain(), 'wino', 4)
    with says(ValueError, 'Wrong', 'is off by', 'mask of attention'): sample(Wrong(lm(1)), 'wino', 4)
    with says(ValueError, 'gives no shadows for 8 positions', 'without shift'):
        sample(navira.load(pytestconfig.rootpath / 'tests' / 'golden' / 'dream'), 'wino', 4, length=8)
    local = navira.load(pytestconfig.rootpath / 'tests' / 'golden' / 'modernbert')
    with says(ValueError, 'for a text of 12 positions', 'is off by'): sample(local, 'wino', 4, length=12)
    st = navira.core.State.start(torch.tensor([[M, 1, M]]), M, 3, navira.base.noise.Noise(0, torch.arange(1)))
    st = replace(st, fixed=torch.zeros_like(st.fixed))
    with says(ValueError, 'function has no `shadow`'): step(wino(), st, lambda x: lm(1)(x))     # a loop of one's own

@pytest.mark.parametrize('kw, parts', [
    (dict(threshold=1.5), ['threshold=1.5', '[0, 1]']), (dict(threshold_back=-.1), ['threshold_back=-0.1', 'revokes']),
    (dict(max_accept=0), ['max_accept=0', 'at least 1']), (dict(block_length=0), ['block_length=0'])])
def test_bad_numbers(kw, parts):
    with says(ValueError, *parts): policy('wino', **kw)

def test_a_bad_kind_of_shadow():
    with says(KeyError, "did you mean 'alone'"): policy('wino', shadows='lone')
