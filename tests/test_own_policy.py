"""A policy or a model of one's own cannot break what every policy keeps: the part that would is named, before anything is lost."""
from dataclasses import replace
import pytest, torch
import navira, navira.onepass
from navira.baselines import Critic
from navira.decoupling import navira_det, refresh
from navira.diffusion import Noise, Pass
from navira.prism import State, distrust, none, predictor, prism, step, to_go, topk, uniform
from navira.sampling import n_steps, policies, policy
from toys import small_lm

L, PROMPT = 12, [[1, 2, 3]]
everything = lambda st, score, eligible: torch.ones_like(eligible)
def text(model, policy, **kw): return navira.sample(model, policy, 12, 3, 0, L, PROMPT, **kw)

def refused(policy, *words, model=None):
    with pytest.raises(ValueError) as e: text(model or small_lm(), policy)
    assert all(w in str(e.value) for w in words), str(e.value)

# --- rules ----------------------------------------------------------------------------------------------------------------
def takes_all(st, score, eligible): return torch.ones_like(eligible)
def takes_fixed(st, score, eligible): return eligible | st.fixed
def as_numbers(st, score, eligible): return eligible.float()
def one_row(st, score, eligible): return eligible[:1]
def no_tensor(st, score, eligible): return eligible.tolist()

@pytest.mark.parametrize('base', [prism, navira_det])
@pytest.mark.parametrize('select, word', [(takes_all, 'prompt'), (takes_fixed, 'prompt'), (as_numbers, 'bool tensor'), (one_row, 'bool tensor'), (no_tensor, 'bool tensor')])
def test_a_remask_cannot_erase_the_prompt(base, select, word): refused(replace(base(), remask=(uniform, select)), 'remask', select.__name__, word)

@pytest.mark.parametrize('select, word', [(takes_all, 'eligible'), (as_numbers, 'bool tensor'), (one_row, 'bool tensor')])
def test_a_reveal_writes_masks_alone(select, word): refused(replace(prism(), reveal=(uniform, select)), 'reveal', select.__name__, word)

@pytest.mark.parametrize('select', [none(), topk(0), topk(lambda st: (to_go(st) - 1).clamp(min=0))])
def test_a_finished_text_holds_no_mask(select): refused(replace(prism(), reveal=(uniform, select)), 'reveal', type(select).__name__, 'masks')

@pytest.mark.parametrize('score', [lambda st, p: torch.zeros(st.x.shape[1]), lambda st, p: torch.zeros(*st.x.shape, 1), lambda st, p: None, lambda st, p: .5])
@pytest.mark.parametrize('part', ['reveal', 'remask'])
def test_a_score_has_a_number_a_position(score, part): refused(replace(prism(n_remask=1, on=0.), **{part: (score, topk(to_go if part == 'reveal' else 1))}), 'lambda', 'one number a position')

@pytest.mark.parametrize('draw', [
    lambda logits, u: logits.argmax(-1), lambda logits, u: (logits.argmax(-1), torch.tensor(1.)), lambda logits, u: (logits.argmax(-1)[:1], torch.ones(1)) if len(u) > 1 else (u, u),
    lambda logits, u: (logits.argmax(-1).float(), u), lambda logits, u: (torch.full((len(u),), logits.shape[1]), u), lambda logits, u: (torch.full((len(u),), -1), u),
    lambda logits, u: (torch.full((len(u),), 10), u), lambda logits, u: (logits.argmax(-1), u * torch.nan)])      # 10 is the mask of `small_lm`
def test_a_draw_gives_a_token_and_its_probability_each(draw): refused(replace(prism(), draw=draw), 'draw', 'lambda', 'expected')

@pytest.mark.parametrize('k, word', [(lambda st: None, 'None'), (lambda st: torch.ones(7), '(7,)'), (lambda st: 'many', 'many'), (lambda st: torch.ones(2, 12), '(2, 12)')])
def test_a_dial_gives_a_number_a_row(k, word): refused(replace(prism(), reveal=(uniform, topk(k))), 'lambda', word, 'expected a number')

def erases(policy, st, model): return replace(st, x=torch.full_like(st.x, st.mask_id)), refresh(policy, st, model)[1]
def forgets_the_pass(policy, st, model): return st
def gives_none(policy, st, model): return None

@pytest.mark.parametrize('predict', [erases, forgets_the_pass, gives_none])
def test_a_predict_keeps_the_prompt_and_gives_a_state_and_a_pass(predict):
    refused(replace(prism(), predict=predictor(1, True)(predict), reveal=(uniform, topk(100))), 'predict', predict.__name__, 'expected')

@pytest.mark.parametrize('T', [2.5, 0, -1, None, 'many'])
def test_steps_are_a_whole_number(T):
    rule = replace(prism(), steps=lambda policy, budget, n_free: T)
    with pytest.raises(ValueError, match='steps: .*lambda.* gave T='): n_steps(rule, 8, torch.tensor([9]))
    refused(rule, 'steps')

def test_checks_let_what_is_right_pass():
    own = replace(navira_det(n_remask=1, on=0.), remask=(distrust, lambda st, score, eligible: eligible & (score == score.masked_fill(~eligible, -torch.inf).amax(1, keepdim=True))))
    out = text(small_lm(), own)
    assert (out.tokens != 10).all() and (out.tokens[:, :3] == torch.tensor(PROMPT)).all()

# --- numbers that are none ------------------------------------------------------------------------------------------------
def spoilt(value, where='logits', seed=0):
    model = small_lm(seed)
    with torch.no_grad():
        if where == 'logits': model.backbone.output_layer.linear.bias[4] = value
        else: [p.fill_(value) for p in model.quality.parameters() if p.ndim == 1]
    return model

@pytest.mark.parametrize('value', [float('nan'), float('inf')])
@pytest.mark.parametrize('name', sorted(policies()))
def test_logits_that_are_no_numbers_end_the_run(name, value):
    rule = policy(name, critic=Critic.of(small_lm(), 1)) if name == 'token-critic' else name
    refused(rule, 'logits', 'diverged', model=spoilt(value))

@pytest.mark.parametrize('name', ['prism', 'navira', 'navira-piecewise', 'navira-onepass', 'remedi'])
def test_a_quality_that_is_no_number_ends_the_run(name):
    with pytest.raises(ValueError, match='quality.*diverged'): navira.sample(spoilt(float('nan'), 'quality'), name, 24, 16, 0, L, PROMPT)

def test_a_critic_that_gives_no_numbers_ends_the_run():
    critic = Critic.of(small_lm(), 1)
    with torch.no_grad(): critic.backbone.output_layer.linear.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match='quality.*diverged'): navira.sample(small_lm(), 'token-critic', 12, 3, 0, L, PROMPT, critic=critic)

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_probabilities_of_a_low_precision_pass_are_not_rounded(dtype):
    class Low(Pass):
        def __init__(self, inner): self.inner, self.seen_masked = inner, inner.seen_masked
        def logits(self, where): return self.inner.logits(where).to(dtype)
    model, x = small_lm(), torch.full((3, L), 10)
    st = step(prism(p=1.), State.start(x, 10, 1, Noise(0, torch.arange(3))), lambda x: Low(model(x)))
    q = model(x).logits(st.x != 10).to(dtype).double().softmax(-1).gather(1, st.x.flatten()[:, None])[:, 0]
    assert st.conf.dtype == torch.float32
    torch.testing.assert_close(st.conf.flatten().double(), q, atol=0, rtol=1e-6)
