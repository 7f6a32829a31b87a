"""A policy or a model of one's own: what it may ask for, and that it cannot break what every policy keeps: the part
that would is named, before anything is lost."""
from dataclasses import replace
import pytest, torch
import navira
import navira.peers  # noqa: F401  registers the policies
from navira.models.critic import Critic
from navira.core import Flip, Policy, State, TopK, n_unmask, needs_quality, nothing, random_order, step
from navira.decoupling import navira_det
from navira.diffusion import Forward
from navira.base.noise import Noise
from navira.prism import backbone, low_quality, prism
from navira.sampling import n_steps
from navira.registry import parameters, policies, policy
from toys import Tiny, small_lm

L, PROMPT = 12, [[1, 2, 3]]
def text(model, policy, **kw): return navira.sample(model, policy, 12, 3, 0, L, PROMPT, **kw)

def refused(policy, *words, model=None):
    with pytest.raises(ValueError) as e: text(model or small_lm(), policy)
    assert all(w in str(e.value) for w in words), str(e.value)

# --- a score asks for what it likes ----------------------------------------------------------------------------------
WANTS = dict(     # where a score asks for logits, [B, L]
    everywhere=lambda st, where: torch.ones_like(where), committed=lambda st, where: st.committed,
    prompt=lambda st, where: st.fixed, other_rows=lambda st, where: ~where.any(1, keepdim=True) & st.masked,
    first_row=lambda st, where: (torch.arange(len(where)) == 0)[:, None] & torch.ones_like(where),
    nowhere=lambda st, where: torch.zeros_like(where))

def curious(score, wants, seen):
    "`score`, after it has asked for logits elsewhere and for qualities everywhere"
    def asks(st, p, where):
        if (at := wants(st, where)).any(): seen.append((p.x, at, p.logits(at), p.quality(torch.ones_like(where))))
        return score(st, p, where)
    return asks

BASES = dict(backbone=backbone, prism=lambda: prism(eta=.3, on=0.), navira_det=lambda: navira_det(eta=.3, on=0.))

@pytest.mark.parametrize('wants', WANTS)
@pytest.mark.parametrize('part', ['unmask', 'remask'])
@pytest.mark.parametrize('base', BASES)
def test_a_score_may_ask_for_any_logits_of_any_row(base, part, wants, one_thread):
    "It gets the right numbers, the texts are those of the score that does not ask, and it is never cheaper"
    rule, seen, plain, model = BASES[base](), [], Tiny(L, 5), Tiny(L, 5)
    if part == 'remask' and base == 'backbone': return
    inner = getattr(rule, part)
    own = replace(rule, **{part: replace(inner, score=curious(inner.score, WANTS[wants], seen))})
    a, b = (navira.sample(m, r, 12, 3, 4, L, [[1], [1, 2, 3], [4, 0] * 3]) for m, r in ((plain, rule), (model, own)))
    assert torch.equal(a.tokens, b.tokens) and (b.n_forward >= a.n_forward).all()
    assert b.n_forward.sum() == sum(model.rows) and sum(model.asked) >= sum(plain.asked)
    if wants == 'everywhere':
        assert sum(model.asked) > sum(plain.asked) and any(model.seen) and not any(plain.seen)
        if base != 'backbone' or part == 'unmask': assert model.rated >= plain.rated
    for x, at, logits, quality in seen:
        p = Tiny(L, 5)(x)
        torch.testing.assert_close(logits, p.logits(at))
        torch.testing.assert_close(quality, p.quality())

def test_what_a_question_costs():
    "Two rows have something to fill; a score that looks at the whole batch has the third run, and charged"
    model, x = Tiny(6, 4), torch.tensor([[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 4], [4, 1, 2, 3, 0, 1]])
    st = replace(State.start(torch.full((3, 6), 4), 4, 6, Noise(0, torch.arange(3))), x=x, i=5)
    looks = lambda st, p, where: p.logits(torch.ones_like(where)).amax(-1).view(where.shape)
    alone = Policy(unmask=TopK(random_order, n_unmask))
    for score, rows, n_forward in ((random_order, 2, [0, 1, 1]), (looks, 3, [1, 1, 1])):
        model.rows.clear()
        assert step(replace(alone, unmask=TopK(score, n_unmask)), st, model).n_forward.tolist() == n_forward
        assert model.rows == [rows]     # those that are asked about together run in one batch

@pytest.mark.parametrize('decorated', [False, True])
def test_a_score_need_not_say_that_it_reads_qualities(decorated):
    "The decorator only has a model without a head refused before any work; without it the first question is refused"
    def mine(st, p, where): return -p.quality(where)
    own = replace(navira_det(n_remask=1, on=0.), remask=TopK(needs_quality(mine) if decorated else mine, 1))
    assert own.reads_quality == decorated and not backbone().reads_quality and prism().reads_quality
    det = replace(own, remask=TopK(low_quality, 1))
    assert torch.equal(text(small_lm(), own).tokens, text(small_lm(), det).tokens)
    refused(own, 'quality head', model=small_lm(quality_blocks=None))

def test_a_rule_is_any_function():
    "No class, no mark, nothing about rows: state, pass and where it may pick"
    def surest(st, p, eligible):
        best = p.logits(eligible).amax(-1)
        v = torch.full(eligible.shape, -torch.inf).to(best).masked_scatter(eligible, best)
        return eligible & (v == v.amax(1, keepdim=True)) & (n_unmask(st) > 0)[:, None]
    out = text(small_lm(), Policy(unmask=surest, steps=lambda policy, budget, n_free: 12))
    assert (out.tokens != 10).all() and (out.tokens[:, :3] == torch.tensor(PROMPT)).all()
    assert (out.n_forward >= 9).all()     # such a rule may pick in any row with a mask, so all of these run

# --- rules -----------------------------------------------------------------------------------------------------------
def takes_all(st, p, eligible): return torch.ones_like(eligible)
def takes_fixed(st, p, eligible): return eligible | st.fixed
def as_numbers(st, p, eligible): return eligible.float()
def one_row(st, p, eligible): return eligible[:1]
def no_tensor(st, p, eligible): return eligible.tolist()

@pytest.mark.parametrize('base', [prism, navira_det])
@pytest.mark.parametrize('rule, word', [(takes_all, 'prompt'), (takes_fixed, 'prompt'), (as_numbers, 'bool tensor'),
                                        (one_row, 'bool tensor'), (no_tensor, 'bool tensor')])
def test_a_remask_cannot_erase_the_prompt(base, rule, word):
    refused(replace(base(), remask=rule), 'remask', rule.__name__, word)

@pytest.mark.parametrize('rule, word', [(takes_all, 'eligible'), (as_numbers, 'bool tensor'), (one_row, 'bool tensor')])
def test_an_unmask_writes_masks_alone(rule, word):
    refused(replace(prism(), unmask=rule), 'unmask', rule.__name__, word)

def takes_committed(st, p, eligible): return TopK(random_order, n_unmask)(st, p, eligible) | st.committed

def test_a_committed_token_is_not_written_over():
    refused(replace(prism(), unmask=takes_committed), 'unmask', 'may not be picked', '`eligible`')

def fewer(st): return (n_unmask(st) - 1).clamp(min=0)

@pytest.mark.parametrize('rule', [nothing, TopK(random_order, 0), TopK(random_order, fewer), Flip(0.)], ids=('nothing', 'k=0', 'too few', 'rate=0'))  # noqa: E501
def test_a_finished_text_holds_no_mask(rule):
    refused(replace(prism(), unmask=rule), 'unmask', type(rule).__name__, 'masks')

SCORES = dict(row=lambda st, p, where: torch.zeros(st.x.shape[1]), none=lambda st, p, where: None,
              three=lambda st, p, where: torch.zeros(*st.x.shape, 1), number=lambda st, p, where: .5)

@pytest.mark.parametrize('score', SCORES.values(), ids=SCORES)
@pytest.mark.parametrize('part, k', [('unmask', n_unmask), ('remask', 1)])
def test_a_score_has_a_number_a_position(score, part, k):
    refused(replace(prism(n_remask=1, on=0.), **{part: TopK(score, k)}), 'lambda', 'one number a position')

DRAWS = [
    lambda logits, u: logits.argmax(-1), lambda logits, u: (logits.argmax(-1), torch.tensor(1.)),
    lambda logits, u: (logits.argmax(-1)[:1], torch.ones(1)) if len(u) > 1 else (u, u),
    lambda logits, u: (logits.argmax(-1).float(), u), lambda logits, u: (torch.full((len(u),), logits.shape[1]), u),
    lambda logits, u: (torch.full((len(u),), -1), u), lambda logits, u: (torch.full((len(u),), 10), u), # the mask
    lambda logits, u: (logits.argmax(-1), u * torch.nan)]

@pytest.mark.parametrize('draw', DRAWS)
def test_a_draw_gives_a_token_and_its_probability_each(draw):
    refused(replace(prism(), draw=draw), 'draw', 'lambda', 'expected')

SCHEDULES = [(lambda st: None, 'None'), (lambda st: torch.ones(7), '(7,)'), (lambda st: 'many', 'many'),
             (lambda st: torch.ones(2, 12), '(2, 12)')]

@pytest.mark.parametrize('k, word', SCHEDULES)
def test_a_schedule_gives_a_number_a_row(k, word):
    refused(replace(prism(), unmask=TopK(random_order, k)), 'lambda', word, 'expected a number')

# --- steps -----------------------------------------------------------------------------------------------------------
def erases(policy, st, model, watch):
    return replace(st, x=torch.full_like(st.x, st.mask_id)).next(torch.ones(len(st.x), dtype=torch.long))
def gives_no_state(policy, st, model, watch): return st.x
def gives_none(policy, st, model, watch): return None

@pytest.mark.parametrize('own', [erases, gives_no_state, gives_none])
def test_a_step_keeps_the_prompt_and_gives_a_state(own):
    refused(replace(prism(), step=own), 'step', own.__name__, 'expected')

def test_a_step_of_ones_own_may_take_the_common_one():
    "Twice the common step, in one; its passes are counted"
    def twice(policy, st, model, watch):
        plain = replace(policy, step=None)
        half = step(plain, replace(st, i=2 * st.i, n=2 * st.n), model)
        return replace(step(plain, half, model), i=st.i + 1, n=st.n)
    model = small_lm()
    a, b = text(model, replace(navira_det(eta=.4, on=0.), step=twice, cost=4)), text(model, navira_det(eta=.4, on=0.))
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward) and 2 * a.n_steps == b.n_steps

@pytest.mark.parametrize('T', [2.5, 0, -1, None, 'many'])
def test_steps_are_a_whole_number(T):
    rule = replace(prism(), steps=lambda policy, budget, n_free: T)
    with pytest.raises(ValueError, match='steps: .*lambda.* gave T='): n_steps(rule, 8, torch.tensor([9]))
    refused(rule, 'steps')

def test_checks_let_what_is_right_pass():
    def lowest(st, p, eligible):
        v = p.quality(eligible).masked_fill(~eligible, torch.inf)
        return eligible & (v == v.amin(1, keepdim=True))
    out = text(small_lm(), replace(navira_det(), remask=lowest))
    assert (out.tokens != 10).all() and (out.tokens[:, :3] == torch.tensor(PROMPT)).all()

# --- numbers that are none -------------------------------------------------------------------------------------------
def spoilt(value, where='logits', seed=0):
    model = small_lm(seed)
    with torch.no_grad():
        if where == 'logits': model.backbone.output_layer.linear.bias[4] = value
        else: [p.fill_(value) for p in model.quality.parameters() if p.ndim == 1]
    return model

@pytest.mark.parametrize('value', [float('nan'), float('inf')])
@pytest.mark.parametrize('name', sorted(policies()))
def test_logits_that_are_no_numbers_end_the_run(name, value):
    rule = policy(name, critic=Critic.of(small_lm(), 1)) if 'critic' in parameters(policies()[name]) else name
    refused(rule, 'logits', 'diverged', model=spoilt(value))

@pytest.mark.parametrize('name', ['prism', 'navira', 'navira-piecewise', 'navira-onepass', 'remedi'])
def test_a_quality_that_is_no_number_ends_the_run(name):
    model = spoilt(float('nan'), 'quality')
    with pytest.raises(ValueError, match='quality.*diverged'): navira.sample(model, name, 24, 16, 0, L, PROMPT)

def test_a_critic_that_gives_no_numbers_ends_the_run():
    critic = Critic.of(small_lm(), 1)
    with torch.no_grad(): critic.backbone.output_layer.linear.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match='quality.*diverged'):
        navira.sample(small_lm(), 'token-critic', 12, 3, 0, L, PROMPT, critic=critic)

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_probabilities_of_a_low_precision_pass_are_not_rounded(dtype):
    class Low(Forward):
        def __init__(self, inner): self.inner, self.seen_masked = inner, inner.seen_masked
        def logits(self, where): return self.inner.logits(where).to(dtype)
    model, x = small_lm(), torch.full((3, L), 10)
    st = step(prism(top_p=1.), State.start(x, 10, 1, Noise(0, torch.arange(3))), lambda x: Low(model(x)))
    probs = model(x).logits(st.x != 10).to(dtype).double().softmax(-1).gather(1, st.x.flatten()[:, None])[:, 0]
    assert st.conf.dtype == torch.float32
    torch.testing.assert_close(st.conf.flatten().double(), probs, atol=0, rtol=1e-6)
