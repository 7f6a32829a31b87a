"A policy that is handed logits writes what it writes when it asks a model for them."
from dataclasses import replace

import pytest
import torch

import frozen
from helpers.peers import WITHOUT_CRITIC
from navira.base.noise import Noise
from navira.sampler.budgets import n_steps
from navira.hosts.from_logits import hosted, policy_step, start
from navira.sampler.registry import policy
from navira.sampling import states

M, L, V = frozen.M, frozen.L, frozen.V
ALONE = [n for n in WITHOUT_CRITIC if policy(n).step.needs]      # more than logits of one text
PLAIN = [n for n in WITHOUT_CRITIC if n not in ALONE]
# 12, 9, 6, 8 and 1 free
ragged = torch.stack([torch.tensor(t + [M] * (L - len(t))) for t in frozen.prompts['ragged']])

def network(ids, net=frozen.net): # -> logits [B, L, V], qualities [B, L]
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    return net.logits_at(ids, everywhere).unflatten(0, ids.shape), net.quality_of(ids)

def run(rule, x, budget=16, seed=3, net=network, **how):
    "The memory at the end, and every text that was read"
    ids, read = x, []
    memory = start(rule, x, M, budget, seed, quality=rule.reads_quality, **how)
    while not memory.done:
        logits, quality = net(ids)
        read.append(ids)
        ids, memory = policy_step(ids, logits, quality if rule.reads_quality else None, memory)
    assert torch.equal(ids, memory.st.x)
    return memory, read

def reference(rule, x, budget=16, seed=3, made=0):
    "The last state of the library's own loop"
    rule = replace(rule, depth=None)
    noise = Noise(seed, torch.arange(len(x)), made)
    *_, last = states(rule, frozen.net, x, n_steps(rule, budget, (x == M).sum(1)), noise)
    return last

@pytest.mark.parametrize('name', PLAIN)
def test_every_policy_writes_what_the_own_loop_writes(name):
    "With all its settings; rows have 1 to 12 masks, and a text that has been read is not read anew"
    for hyper in frozen.variants(name):
        rule = policy(name, **hyper)
        try: last = reference(rule, ragged)
        except ValueError as e:                 # blocks that do not fit
            assert 'block' in str(e)
            continue
        memory, read = run(rule, ragged)
        assert torch.equal(memory.st.x, last.x)
        for k in ('conf', 'score'):
            torch.testing.assert_close(getattr(memory.st, k), getattr(last, k), equal_nan=True)
        assert torch.equal(memory.st.n_forward, last.n_forward)
        assert all(not torch.equal(a, b) for a, b in zip(read, read[1:]))
        assert len(read) <= (16 if rule.matched else last.n * rule.passes)
        for ids in read: assert torch.equal(ids[ragged != M], ragged[ragged != M])

@pytest.mark.parametrize('name', ALONE + [n for n in PLAIN if policy(n).reads_quality])
def test_a_policy_that_needs_more_says_so_by_name(name):
    needs = 'head|shadow|embed|attention|critic|draft'
    with pytest.raises(ValueError, match=f"'{name}' needs .*({needs})"):
        hosted(name, {}, 32, 32)
    if name not in ALONE: return
    with pytest.raises(ValueError, match='needs'): start(policy(name), ragged, M, 16, quality=True)


TWO = ['remdm-conf', 'entropy-remask', 'mask-predict']


@pytest.mark.parametrize('name', TWO)
def test_a_row_does_not_depend_on_the_others_and_a_step_is_pure(name):
    rule = policy(name)
    whole, one = run(rule, ragged)[0].st, run(rule, ragged[:1])[0].st
    assert torch.equal(whole.x[0], one.x[0])
    memory = start(rule, ragged, M, 16, 3)
    for _ in range(4):
        given = memory.ids, network(memory.ids)[0], None, memory
        first, memory = policy_step(*given)
        again, other = policy_step(*given)
        assert torch.equal(first, again) and torch.equal(memory.st.x, other.st.x)

@pytest.mark.parametrize('name', TWO)
def test_blocks_follow_on_each_other(name):
    "A second block has the numbers of later steps, as block after block in `sample`"
    rule = policy(name)
    first = run(rule, ragged)[0]
    second = run(rule, ragged, after=first)[0].st
    assert torch.equal(second.x, reference(rule, ragged, made=first.st.n).x)
    assert name == 'mask-predict' or not torch.equal(second.x, first.st.x)

@pytest.mark.parametrize('name', TWO)
def test_a_run_goes_on_after_a_host_has_changed_the_text(name):
    "It writes tokens and masks of its own, also between two passes of a step"
    ids, changed = torch.full((1, L), M), 0
    memory = start(policy(name), ids, M, 16, 3)
    for k in range(40):
        if memory.done: break
        ids, memory = policy_step(ids, network(ids)[0], None, memory)
        if k < 6 and not memory.done:
            ids = ids.index_fill(1, torch.tensor([k]), M if k % 2 else 2)
            changed += not torch.equal(ids, memory.ids)
    assert memory.done and (ids != M).all() and changed > 1


def test_fixed_masks_stay_and_a_text_without_masks_is_done():
    rule, fixed = policy('remdm-conf'), torch.zeros_like(ragged, dtype=torch.bool)
    fixed[:, -3:] = True
    last = run(rule, ragged, fixed=fixed | (ragged != M))[0].st
    assert (last.x[:, -3:][ragged[:, -3:] == M] == M).all()
    full = torch.zeros(2, L, dtype=torch.long)
    memory = start(rule, full, M, 16)
    assert memory.done
    assert torch.equal(policy_step(full, network(full)[0], None, memory)[0], full)

def test_logits_of_other_positions_and_small_budgets_are_refused():
    memory = start(policy('mdlm'), ragged, M, 16)
    with pytest.raises(ValueError, match='positions'):
        policy_step(ragged, network(ragged)[0].flatten(0, 1), None, memory)
    with pytest.raises(ValueError, match='budget'): start(policy('entropy-remask'), ragged, M, 1)
