"""Every policy in the registry, whoever wrote it: it keeps the promises, and says what it is."""
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import frozen
from navira.base.noise import Noise
from navira.core import Flip, Policy, State, TopK, random_choice, random_order, step
from navira.diffusion import drawer
from navira.exact import Coins
from navira.peers.blocks import Within
from navira.registry import about, choices, parameters, policies, policy, split_typed
from navira.sampling import sample
from helpers.core import dist_of, drawn, joint3  # noqa: F401
from toys import ACCEPT, REJECT, Exact, chi2, counted, planted

NAMES = sorted(set(policies()) - {'second-thoughts'})      # `peers/survey` registers one of its own
OLD = frozen.read()


def test_card():
    "Policies of 0.1.0 have a full one; a new one says what it likes, in the same words"
    for name in NAMES:
        card = about(name)
        assert set(card) == {'scores', 'selects', 'never', 'exact', 'source'}
        assert all(card.values()) or name not in OLD, card


def test_a_comparison_can_give_all_the_same_nucleus():
    for name in NAMES:
        if name in OLD or 'top_p' in parameters(policies()[name]):
            assert policy(name, top_p=.5).draw.top_p == .5, name


@pytest.mark.parametrize('name', NAMES)
def test_what_revises_says_so_and_nothing_else(name):
    "By what each case of frozen.json did: written tokens that were masked or replaced"
    known, did = parameters(policies()[name]), set()
    own = dict(critic=frozen.critic) if 'critic' in known else {}
    for _, hyper, budget, prompt, seed in frozen.cases(name):
        hyper = own | {'top_p' if k == 'p' else k: v for k, v in hyper.items()}
        if not hyper.keys() <= known.keys(): continue      # a block_length of `sample`
        rule, how = policy(name, **hyper), dict(length=frozen.L, prompt=frozen.prompts[prompt])
        try: t = sample(frozen.net, rule, budget, frozen.ROWS, seed, **how, trace=True).trace
        except ValueError: continue                        # a budget or prompt that is refused
        written = (t.x[:-1] != t.mask_id) & ~t.fixed
        changed = bool((written & (t.remasked | (t.x[1:] != t.x[:-1]))).any())
        assert rule.revises or not changed
        did.add(changed)
        if changed: break
    assert policy(name, **own).revises == (True in did)


def test_the_registry_fills_itself_and_keeps_what_was_there():
    code = """from navira.registry import policy, policies, register
mine = register('maskgit')(lambda: policy('prism'))
print(len(policies()), policy('llada-low-confidence').revises, policies()['maskgit'] is mine)"""
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == [str(len(NAMES)), 'False', 'True']

@pytest.mark.parametrize('key', ['name', 'source', 'kind', 'path', 'self', 'factory'])
def test_a_hyper_parameter_may_have_any_name(key):
    with pytest.raises(KeyError, match=f"hyper-parameter '{key}': expected one of"):
        policy('backbone', **{key: 'x'})

@pytest.mark.parametrize('unmask, remask', [
    (TopK(random_order, 1, .5), TopK(random_choice, 1, .5)), (Flip(.1), Flip(.1)),
    (Within(None, TopK(random_order, 1, lambda st: st.u)), TopK(random_choice, 1, .5))])
def test_two_rules_do_not_draw_the_same_numbers(unmask, remask):
    with pytest.raises(ValueError, match='expected one of its own for each'): Policy(unmask, remask)
    Policy(unmask, replace(remask, purpose='other'))
    if isinstance(remask, TopK): Policy(unmask, replace(remask, tau=None))     # draws nothing
    for both in (Within(unmask, remask), Within(None, (unmask, [remask]))):     # in one rule
        with pytest.raises(ValueError, match='expected one of its own'): Policy(both)


@pytest.mark.parametrize('score, few', [(random_choice, True), (random_order, False)])
def test_what_is_remasked_is_not_what_is_filled(score, few):
    """Random remasking with a second pass: 2 of 34 masks are filled, so 2 of 34 of what was
    remasked, not all of it"""
    rule = Policy(remask=TopK(score, 2), unmask=TopK(random_order, 2), decoupled=True,
                  draw=drawer())
    x = torch.where(torch.arange(64) < 32, 1, 2).expand(4000, -1)
    st = State.start(torch.full_like(x, 2), 2, 4, Noise(0, torch.arange(4000)))
    seen = []
    step(rule, replace(st, x=x, i=1), Coins(64), lambda *s: seen.append(s))
    _, before, _, cleaned, after = seen[0]
    gone, new = before.committed & cleaned.masked, cleaned.masked & ~after.masked
    share = (gone & new).sum() / gone.sum()
    assert abs(share - 2 / 34) < .015 if few else share > .2


def test_every_text_has_choices():
    "that `policy` accepts, all of them, and nothing else"
    texts = [
        (name, k, p)
        for name, f in policies().items()
        for k, p in parameters(f).items()
        if isinstance(p.default, str) and k != 'critic'      # which is a file
    ]
    assert len(texts) > 12
    for name, k, p in texts:
        offered = choices(p)
        assert p.default in offered and len(offered) > 1
        for v in offered: policy(name, **{k: v})
        with pytest.raises(KeyError, match=f"did you mean '{offered[-1]}'"):
            policy(name, **{k: offered[-1][:-1]})


# ---- mdlm


def tv(a, b): return sum(abs(a.get(k, 0) - b.get(k, 0)) for k in {*a, *b}) / 2

def test_mdlm_has_its_own_distribution_and_comes_to_the_joint(joint3):
    """Two masks flip in one step with probability 1/T, and are then independent: at T = 3 far
    from the joint"""
    exact, x0 = Exact(joint3), [joint3.mask_id] * 3
    dist = exact.ancestral(x0, 3)
    got = counted(drawn(joint3, 'mdlm', 3, top_p=1.).tokens)
    assert chi2(got, dist) > ACCEPT and chi2(got, planted(dist)) < REJECT
    assert chi2(got, dist_of(joint3)) < REJECT
    far = [tv(exact.ancestral(x0, T), dist_of(joint3)) for T in (3, 30, 300)]
    # of order 1/T
    assert far[0] > 10 * far[2] and far[2] < 1e-3 and far[1] / far[2] == pytest.approx(10, rel=.1)


@pytest.mark.parametrize('text, pairs', [
    ('x', []), ('x:', []), ('x: a=1e+5 + b=+2;c_d=.5 ', [' a=1e+5 ', ' b=+2', 'c_d=.5 ']),
    ('x:a=b+c', ['a=b+c'])])
def test_a_plus_sign_separates_hyper_parameters_but_no_number(text, pairs):
    assert split_typed(text) == ('x', pairs)
