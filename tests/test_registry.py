"""Every policy in the registry, whoever wrote it: it keeps the promises, and says what it is."""
import pytest, torch
import navira.onepass     # registers itself and the baselines
from navira.baselines import survey
from test_baselines_critic import critic_like
from navira.diffusion import Noise, Pass
from navira.prism import Policy, State, at_random, step, topk, uniform
from navira.decoupling import refresh
from navira.sampling import about, n_steps, policies, policy, sample
from navira.diffusion import drawer
from toys import small_lm

NAMES = sorted(set(policies()) - {'second-thoughts'})      # notebook 08 registers one of its own
KINDS = ('exact', 'ancestral', 'heuristic')


@pytest.fixture(scope='module')
def lm(): return small_lm(seed=3).double()


def made(name, lm):
    "The policy; one that brings a network of its own gets one for this model"
    return policy(name, **(dict(critic=critic_like(lm, n_blocks=1)) if name == 'token-critic' else {}))


def prompts(lm):
    "Three rows with 0, 3 and 7 given tokens, some in the middle, so that free positions are 12, 9 and 5."
    x = torch.full((3, 12), lm.mask_id)
    x[1, [0, 4, 5]] = torch.tensor([1, 2, 3])
    x[2, [0, 1, 2, 6, 7, 10, 11]] = torch.tensor([4, 5, 6, 7, 8, 9, 1])
    return x


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('budget', [4, 7, 16])
def test_promises(lm, name, budget):
    x = prompts(lm)
    fixed, rule = x != lm.mask_id, made(name, lm)
    out = sample(lm, rule, budget, 3, seed=5, prompt=x, trace=True)
    assert not (out.tokens == lm.mask_id).any() and torch.equal(out.tokens[fixed], x[fixed])
    assert not out.trace.remasked[:, fixed].any() and not out.trace.revealed[:, fixed].any()
    if rule.matched: assert out.n_forward.max() <= budget and out.n_steps * rule.predict.passes >= budget - rule.predict.passes
    else: assert (out.n_forward <= (~fixed).sum(1)).all()


@pytest.mark.parametrize('name', NAMES)
def test_a_row_is_what_it_is_alone(lm, name):
    x, rule = prompts(lm), made(name, lm)
    x[0, 6] = 3              # without any token all positions are alike to a rotary network, and the last bit decides a greedy order
    T = n_steps(rule, 8, (x == lm.mask_id).sum(1))
    together = sample(lm, rule, 8, 3, seed=2, prompt=x)
    for b in range(3):                 # the same number of steps: a bound may depend on the longest row
        alone = State.start(x[b:b + 1], lm.mask_id, T, Noise(2, torch.tensor([b])))
        for _ in range(T): alone = step(rule, alone, lm)
        assert torch.equal(alone.x[0], together.tokens[b]) and alone.n_forward[0] == together.n_forward[b]


@pytest.mark.parametrize('name', NAMES)
def test_card(name):
    card = about(name)
    assert set(card) == {'scores', 'selects', 'never', 'exact', 'source'} and all(card.values()), card
    assert card['exact'].split()[0].strip(':;,') in KINDS and card['never'].split()[0].strip('(') in ('nothing', 'what', 'finished')


@pytest.mark.parametrize('name', NAMES)
def test_a_comparison_can_give_all_the_same_nucleus(name): assert policy(name, p=.5).draw.p == .5


def test_the_survey_has_them_all_and_gidd():
    rows = {r['policy']: r for r in survey()}
    assert rows['llada-low-confidence']['draws'] == 'argmax' and rows['dream-entropy']['draws'] == 'temperature 0.2, nucleus 0.95' and rows['prism']['draws'] == 'nucleus 0.9' and rows['eb']['draws'] == 'the whole law'
    assert set(rows) == set(policies()) | {'gidd'} and rows['gidd']['exact'].startswith('not run')
    assert all(r['coupling'] == 'nothing taken back' for r in rows.values() if r['never'] == 'what is committed')


class Coin(Pass):
    def __init__(self, masked): self.seen_masked = masked
    def logits(self, where): return torch.tensor([0., 0., -torch.inf]).expand(int(where.sum()), 3)

class Coins:
    mask_id, length = 2, 64
    def __call__(self, x): return Coin(x == 2)


@pytest.mark.parametrize('score, few', [(at_random, True), (uniform, False)])
def test_what_is_taken_back_is_not_what_is_opened(score, few):
    "Random remasking with a second pass: 2 of 34 masks are opened, so 2 of 34 of what was taken back, not all of it"
    rule = Policy(remask=(score, topk(2)), reveal=(uniform, topk(2)), predict=refresh, draw=drawer())
    x = torch.where(torch.arange(64) < 32, 1, 2).expand(4000, -1)
    st = State.start(torch.full_like(x, 2), 2, 4, Noise(0, torch.arange(4000)))
    seen = []
    step(rule, State(x, st.fixed, st.conf, st.score, st.n_forward, st.noise, 2, 1, 4), Coins(), lambda b, c, a: seen.append((b.committed & c.masked, c.masked & ~a.masked)))
    gone, new = seen[0]
    share = (gone & new).sum() / gone.sum()
    assert abs(share - 2 / 34) < .015 if few else share > .2


@pytest.mark.parametrize('wrong, said', [(dict(remask=uniform), 'remask='), (dict(reveal=(uniform,)), 'reveal='), (dict(predict=lambda *a: a), 'predict=')])
def test_what_is_no_policy_is_refused_when_it_is_made(wrong, said):
    with pytest.raises(ValueError, match=f'{said}.*expected'): Policy(**dict(reveal=(uniform, topk(1)), predict=refresh) | wrong)

@pytest.mark.parametrize('part', ['reveal', 'remask'])
def test_a_score_of_another_shape_is_an_error_that_says_so(lm, part):
    def too_few(st, p): return st.x.double()[:, 1:]
    bad = Policy(**dict(reveal=(uniform, topk(2)), remask=(uniform, topk(1)), predict=refresh) | {part: (too_few, topk(1))})
    with pytest.raises(ValueError, match=r'too_few gave a score of shape \(2, 11\); expected one number a position, a tensor \(2, 12\)'): sample(lm, bad, 8, 2)
