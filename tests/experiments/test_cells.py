"""One policy with its parameters, one budget, one seed: its identity, and its name on disk."""
import inspect
import json
from dataclasses import make_dataclass
from pathlib import Path

import pytest
import torch

import navira.experiments.cells as ex_cells
from navira.models.load import load
from navira.registry import policies, policy
from navira.sampling import sample
from navira.experiments.cells import beside, Cell, cell_key, code_hash, digest, fingerprint
from toys import random_joint, small_lm
from helpers.experiments import BODY, GOLDEN, HEAD, cache, one_thread_each, own_policy, somebody  # noqa: F401

# --- what decides tokens ----------------------------------------------------------------------------------------------

class Reviewer:
    "A critic for `token-critic` that needs no weights: the joint itself"
    def __init__(self, joint): self.joint, self.mask_id, self.length = joint, joint.mask_id, joint.length
    def __call__(self, x): return self.joint(x)

# settings without which a rule is another one on so short a text
ACTING = {'fast-dllm': dict(threshold=.4), 'remedi': dict(temperature=1.)}

def golden(name):
    """Digest of what a policy writes on an exact model in float64: 16 texts of 5 tokens, 18 forwards, and as much taken
    back as it can"""
    joint, accepted = random_joint(5, 3, seed=5), inspect.signature(policies()[name]).parameters
    hyper = (
        dict(critic=Reviewer(joint))
        if name == 'token-critic'
        else {
            k: v
            for k, v in dict(
                eta=0.05 if name == 'remdm-loop' else 0.4, on=0.0, rate=0.6, top_p=1.0, **ACTING.get(name, {})
            ).items()
            if k in accepted
        }
    )
    res = sample(joint, policy(name, **hyper), 18, 16, seed=1, batch_size=16)
    return digest([res.tokens.tolist(), res.n_forward.tolist()])

MORE = """
TABLE = dict(sign={sign})
def halved(v, by={default}): return v / by
class Base:
    def __call__(self, st, p, where): return TABLE['sign'] * halved(self.rate(st, p, where))
class Rated(Base):
    def rate(self, st, p, where): return low_quality(st, p, where) ** self.power
def make(power):
    score = Rated()
    score.power = power
    @register('somebodys')
    def somebodys(eta: float = .2): return replace(navira_det(), remask=TopK(score, remask_count(eta)))
make({power})
"""

def test_rules_version():
    """What a policy of 0.1.0 writes has changed: raise RULES in the notebook of the store, or old stores pass for new
    ones, and put in the digests that this prints. A new policy need not be here."""
    now = {name: golden(name) for name in GOLDEN}
    assert len(set(now.values())) == len(now), 'two policies write the same: settings that tell them apart go into ACTING'  # noqa: E501
    changed = {k: v for k, v in now.items() if v != GOLDEN[k]}
    assert not changed and ex_cells.RULES == 1, f'tokens of {sorted(changed)} changed: raise RULES, and GOLDEN |= {changed}'  # noqa: E501

def test_a_critic_is_in_the_key(tmp_path):
    "Trained anew in the same folder, it is another cell; moved or read again, it is not"
    from navira.models.critic import Critic
    model = small_lm(seed=3)
    critic = Critic.of(model, n_blocks=1); critic.save(tmp_path / 'c')
    cell = Cell('token-critic', 8, dict(critic=str(tmp_path / 'c')))
    key = cell_key(cell, 'm', 12)
    assert key == cell_key(cell, 'm', 12) and beside(Cell('prism', 8)) == ''
    with torch.no_grad(): next(iter(critic.parameters())).add_(1.)
    critic.save(tmp_path / 'c')
    assert cell_key(cell, 'm', 12) != key

def test_what_a_policy_is_made_of(somebody):
    "A number in a table, a default, what is closed over: each counts, wherever it is named"
    def hashed(**kw):
        own_policy(MORE.format(**dict(sign=1, default=2, power=3) | kw))
        return code_hash('somebodys')
    assert hashed() == hashed()
    assert len({hashed(), hashed(sign=-1), hashed(default=4), hashed(power=1)}) == 4

def test_a_policy_whose_source_is_not_to_be_had_is_said_to_be_unwatched(somebody):
    somebody()
    exec(HEAD + BODY.format(scale=1., sign='', comment='', weight=1., beside=''), dict(__name__='somebody'))
    with pytest.warns(UserWarning, match='somebodys: its source cannot be read'):
        assert code_hash('somebodys') is None

def test_navira_s_own_policies_are_kept_account_of_by_rules():
    ours = [p for p, f in policies().items() if f.__module__.startswith('navira.')]
    assert len(ours) > 30 and {code_hash(p) for p in ours} == {None}
    with pytest.raises(KeyError, match="did you mean 'prism'"): code_hash('prysm')

# --- the model --------------------------------------------------------------------------------------------------------

STORES = sorted((Path(__file__).parents[2]/'results').glob('*/sweep.json'))

@pytest.mark.parametrize('record', STORES, ids=[p.parent.name for p in STORES])
def test_committed_stores_know_the_embedded_models(record):
    "or nobody could sample one of their texts again, or add a policy to them"
    made = json.loads(record.read_text())
    model = load('sudoku') if 'sudoku' in (made['config'].get('task') or '') else load()
    assert fingerprint(model) == made['fingerprint']

@pytest.mark.parametrize('value, same', [(None, True), (.1, False)])
def test_a_part_that_a_network_does_not_have_leaves_its_fingerprint(value, same):
    a, b = small_lm(), small_lm()
    own = vars(a.config)
    b.config = make_dataclass(type(a.config).__name__, [*own, 'p_new'])(**own, p_new=value)
    assert (fingerprint(a) == fingerprint(b)) == same
