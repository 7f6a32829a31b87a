"""Token-Critic and G-Star: joint ranking in two rules, and their policies on toys and networks."""
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats

from navira.base.noise import Noise
from navira.core import State, TopK, n_unmask, step
from navira.models.critic import Critic
from navira.peers.critics import BelowAll, CriticStep, first_late, g_star, kept_of, standing, token_critic
from navira.peers.revisers import Below, level
from navira.prism import backbone
from navira.sampling import sample
from helpers.critics import Flat, Seen
from helpers.training import one_thread  # noqa: F401
from toys import ACCEPT, counted, critic_like, random_joint, small_lm

# --- rank all = remask and unmask -----------------------------------------------------------------------------------

@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(2, 12), st.booleans())
def test_two_rules_are_one_ranking(seed, T, L, ties):
    "Rows with prompts of different length; the top k of all free positions by (score, key) stand, in each row."
    g, B, M = torch.Generator().manual_seed(seed), 4, 9
    x, i = torch.full((B, L), M), seed % T
    for b in range(B): x[b, :int(torch.randint(0, L, (1,), generator=g))] = 0
    st_ = replace(State.start(x, M, T, Noise(seed, torch.arange(B))), i=i)
    st_ = replace(st_, x=torch.where(~st_.fixed & (torch.rand(B, L, generator=g) < .5), 1, st_.x))
    if ties: score = torch.randint(0, 3, (B, L), generator=g).double()
    else: score = torch.rand(B, L, generator=g, dtype=torch.float64)
    says = lambda *_: score
    cleaned = st_.remask(Below(says, standing)(st_, None, st_.committed))
    filled = TopK(says, n_unmask)(cleaned, None, cleaned.masked & st_.masked)
    stands, u = cleaned.committed | filled, st_.uniform('ties')
    for b in range(B):
        free, k = (~st_.fixed[b]).nonzero()[:, 0].tolist(), int(standing(st_)[b])
        expect = set(sorted(free, key=lambda j: (-score[b, j], u[b, j]))[:k])
        if st_.masked[b].any(): assert {j for j in free if stands[b, j]} == expect
        else: assert torch.equal(stands[b], st_.committed[b])
    assert not (stands & st_.fixed).any()


def test_below_knows_its_rows():
    below = Below(lambda *_: torch.rand(3, 3), standing)
    x = torch.tensor([[9, 9, 1], [1, 1, 1], [9, 9, 9]])
    s = State.start(x, 9, 2, Noise(0, torch.arange(3)))
    assert not below.rows(s, s.committed).any()                              # nothing is written
    s = replace(s, x=torch.tensor([[1, 9, 1], [1, 1, 1], [1, 9, 9]]))
    # one of two is to stand; nothing is free; two of three
    assert below.rows(s, s.committed).tolist() == [True, False, True]
    assert not below.rows(replace(s, i=1), s.committed).any()                # all are to stand
    full = replace(s, x=torch.ones_like(x))
    # nothing to rank against
    assert not replace(below, level=lambda st: torch.zeros(3))(full, None, full.committed).any()

# --- policy ---------------------------------------------------------------------------------------------------------

def slow(model, critic, x, T, seed, noise=0., P=.9):
    "The rule as the paper's figure has it, by loops: fill, rate, keep the top k."
    from toys import everywhere, pick, truncate
    M, (B, L) = model.mask_id, x.shape
    free, U = [[j for j in range(L) if x[b, j] == M] for b in range(B)], Noise(seed, torch.arange(B))
    for i in range(T):
        u = {k: U.uniform(i, k, L).tolist() for k in ('token', 'critic', 'ties')}
        logits, y = everywhere(model, x)[0], x.clone()
        for b in range(B):
            for j in free[b]:
                if x[b, j] == M:
                    y[b, j] = pick(truncate(logits[b, j].double().softmax(-1).tolist(), P), u['token'][b][j])
        g, z = critic(y).quality().double(), y.clone()
        for b in range(B):
            if not (x[b] == M).any(): continue
            k = math.ceil(len(free[b]) * (i + 1) / T)
            r = {j: g[b, j].item() + noise * (1 - (i + 1) / T) * (u['critic'][b][j] - .5) for j in free[b]}
            for j in sorted(free[b], key=lambda j: (-r[j], u['ties'][b][j]))[k:]: z[b, j] = M
        x = z
    return x


@pytest.mark.parametrize('noise', [0., 2.])
@pytest.mark.parametrize('T', [1, 2, 5, 9])
def test_token_for_token(T, noise):
    "Prompts of different length, three batch sizes, against the loops."
    lm = small_lm(); c = critic_like(lm)
    x = torch.full((6, 12), lm.mask_id)
    x[1, :3] = 4; x[2, :11] = 2; x[3, ::2] = 5
    # with none given a row may be filled with one symbol, and then only rounding tells its positions apart
    x[0, 6] = 7
    x[4, 2] = 1
    x[5, 9] = 8
    expect = slow(lm, c, x, T, 3, noise)
    for batch in (1, 4, 6):
        res = sample(lm, token_critic(c, noise), 2 * T, 6, 3, prompt=x, batch_size=batch, trace=True)
        assert torch.equal(res.tokens, expect) and (res.n_forward <= 2 * T - 1).all()
        assert torch.equal(res.tokens[x != lm.mask_id], x[x != lm.mask_id])
        N = (x == lm.mask_id).sum(1)
        for i in range(T):
            assert torch.equal((res.trace.x[i + 1] != lm.mask_id).sum(1) - (12 - N), -(-N * (i + 1) // T))
    if T == 5: assert res.trace.remasked.any()

class Indifferent:
    "A critic without an opinion"
    def __init__(self, model): self.mask_id, self.length = model.mask_id, model.length
    def __call__(self, x): return Flat(x)


def test_without_an_opinion_the_ranking_is_random():
    "T=2, four sites: a fill of all, a random half of it kept, the rest drawn given these. It is random order."
    m = random_joint(4, 2, 5)
    res = sample(m, token_critic(Indifferent(m), top_p=1.), 4, 60_000, 1, batch_size=60_000)
    plain = sample(m, backbone(1.), 2, 60_000, 2, batch_size=60_000)
    a, b = counted(res.tokens), counted(plain.tokens)
    keys = sorted(set(a) | set(b))
    assert stats.chi2_contingency([[a[k] for k in keys], [b[k] for k in keys]]).pvalue > ACCEPT


def test_what_is_committed_is_what_was_read():
    lm = small_lm()
    c, model = Seen(critic_like(lm)), Seen(lm)
    rule = token_critic(c)
    s = State.start(torch.full((5, 12), lm.mask_id), lm.mask_id, 4, Noise(0, torch.arange(5)))
    for i in range(4):
        before = s
        s = step(rule, s, model)
        assert len(model.shown) == i + 1 and len(c.shown) == min(i + 1, 3)              # nobody asks in the last step
        if i == 3: break
        y = c.shown[-1]
        assert not (y == lm.mask_id).any() and torch.equal(y[before.committed], before.x[before.committed])
        assert torch.equal(s.x[s.committed], y[s.committed])
        assert torch.equal(s.n_forward, torch.full((5,), 2 * (i + 1)))
    assert torch.equal(s.n_forward, torch.full((5,), 7)) and not s.masked.any()


def test_refusals():
    lm = small_lm(); other = small_lm(vocab_size=13)
    short = small_lm(model_length=8)
    with pytest.raises(ValueError, match="vocabulary is 13, the model's 11"):
        sample(lm, token_critic(Critic.of(other)), 4)
    with pytest.raises(ValueError, match="mask id is 3, the model's 11"):
        CriticStep(random_joint(3, 3)).fits(random_joint(2, 11))
    with pytest.raises(ValueError, match='rates 8 positions, and there are 12'):
        sample(lm, token_critic(Critic.of(short)), 4)
    counting = Seen(lm)
    with pytest.raises(ValueError): sample(counting, token_critic(Critic.of(other)), 4)
    assert not counting.shown                                                           # before any pass
    for bad in (-1., math.nan, math.inf):
        with pytest.raises(ValueError, match='noise='): token_critic(lm, bad)
    with pytest.raises(ValueError, match='top_p=0'): token_critic(lm, top_p=0.)
    with pytest.raises(ValueError, match='budget=1'): sample(lm, token_critic(Critic.of(lm)), 1)
    assert token_critic(critic=lm, noise=1).step.critic is lm

# --- G-Star ---------------------------------------------------------------------------------------------------------

def star(model, critic, x, T, seed, t_on, tau, P=.9):
    "The rule as its authors' script has it, by loops: MDLM's step; late fill, rate, mask ceil(N s) by Gumbel top-k"
    from toys import everywhere, pick, truncate
    M, (B, L) = model.mask_id, x.shape
    free, U = [[j for j in range(L) if x[b, j] == M] for b in range(B)], Noise(seed, torch.arange(B))
    for i in range(T):
        u = {k: U.uniform(i, k, L).tolist() for k in ('token', 'critic', 'flip', 'ties')}
        logits, y = everywhere(model, x)[0], x.clone()
        late = T - i <= t_on * T + 1e-9
        for b in range(B):
            for j in free[b]:
                if x[b, j] == M and (late or u['flip'][b][j] < 1 / (T - i)):
                    y[b, j] = pick(truncate(logits[b, j].double().softmax(-1).tolist(), P), u['token'][b][j])
        if not late: x = y; continue
        g = critic(y).quality().double()
        for b in range(B):
            n = math.ceil(len(free[b]) * (T - i - 1) / T)
            error = {j: -g[b, j].item() - tau * math.log(-math.log(u['critic'][b][j])) for j in free[b]}
            for j in sorted(free[b], key=lambda j: (-error[j], -u['ties'][b][j]))[:n]: y[b, j] = M
        x = y
    return x


@pytest.mark.parametrize('t_on, tau', [(.3, 1.), (.6, 0.), (1., .3), (0., 1.)])
@pytest.mark.parametrize('T', [2, 4, 9])
def test_g_star_token_for_token(T, t_on, tau):
    "Prompts of different length, two batch sizes, against the loops"
    lm = small_lm(); c = critic_like(lm)
    x = torch.full((6, 12), lm.mask_id)
    x[0, 6] = 7; x[1, :3] = 4; x[2, :11] = 2; x[3, ::2] = 5; x[4, 2] = 1; x[5, 9] = 8
    rule = g_star(c, t_on, tau)
    budget = rule.step.cost(T)
    for batch in (1, 6):
        res = sample(lm, rule, budget, 6, 3, prompt=x, batch_size=batch)
        assert res.n_steps == T and torch.equal(res.tokens, star(lm, c, x, T, 3, t_on, tau))
        assert res.n_forward.max() <= budget and torch.equal(res.tokens[x != lm.mask_id], x[x != lm.mask_id])


def test_a_row_that_ran_ahead_is_taken_back():
    "The ancestral phase has filled all by chance; from the first late step on as many are masked as in other rows"
    lm = small_lm(); c = critic_like(lm)
    full = torch.arange(24).view(2, 12) % 9
    s = State.start(torch.full((2, 12), lm.mask_id), lm.mask_id, 8, Noise(0, torch.arange(2)))
    s = replace(s, x=full, i=5)
    after = step(g_star(c, 1., 0.), s, lm)
    assert (after.masked.sum(1) == 3).all() and after.n_forward.tolist() == [1, 1]       # the critic's alone
    q = c(full).quality()
    assert (q[after.masked].view(2, 3).amax(1) <= q[~after.masked].view(2, 9).amin(1)).all()
    keep = level(kept_of)
    says = lambda *_: q
    assert not Below(says, keep)(s, None, s.committed).any() and BelowAll(says, keep)(s, None, s.committed).any()


@given(st.integers(1, 400), st.floats(0, 1))
def test_g_star_takes_all_the_steps_that_the_budget_pays_for(budget, t_on):
    rule = g_star(Indifferent(small_lm()), t_on)
    T, cost = rule.steps(rule, budget, None), rule.step.cost
    late = [i for i in range(T) if 1 - i / T <= t_on + 1e-9]
    assert cost(T) <= budget < cost(T + 1) and cost(T) == T + max(len(late) - 1, 0)
    assert late == list(range(first_late(T, t_on), T))


def test_g_star_refuses_what_it_cannot_do():
    lm = small_lm()
    for bad in (-.1, 1.1, math.nan):
        with pytest.raises(ValueError, match='t_on='): g_star(lm, bad)
    for bad in (-1., math.nan, math.inf):
        with pytest.raises(ValueError, match='tau='): g_star(lm, tau=bad)
    with pytest.raises(ValueError, match='rates 8 positions, and there are 12'):
        sample(lm, g_star(Critic.of(small_lm(model_length=8))), 4)

# --- training -------------------------------------------------------------------------------------------------------

def test_a_critic_of_another_vocabulary(tmp_path):
    "The same number of words is not the same words: the hash of the vocabulary travels with the critic."
    from tokenizers import Tokenizer, models
    named = lambda words: Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    lm, other = small_lm(), small_lm()
    lm.tokenizer, other.tokenizer = named('abcdefghijk'), named('kjihgfedcba')
    Critic.of(lm).save(tmp_path)
    rule = token_critic(str(tmp_path))
    assert sample(lm, rule, 4, 1).n_steps == 2
    with pytest.raises(ValueError, match="critic's tokenizer is"): sample(other, rule, 4, 1)
    other.tokenizer = None                                     # nothing is known of it: it may be the right one
    assert sample(other, rule, 4, 1).n_steps == 2


def test_a_policy_opens_its_critic_when_it_is_needed(tmp_path):
    lm = small_lm()
    Critic.of(lm).save(tmp_path)
    rule = token_critic(str(tmp_path))
    assert 'critic' not in vars(rule.step)
    assert rule.step.critic is rule.step.critic and 'critic' in vars(rule.step)
