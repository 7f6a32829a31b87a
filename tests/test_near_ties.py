"""Another machine, made of noise: what a sum's last bits are decides nothing. From an empty
start every position of a text looks the same to a network, so the scores of all of them are
equal but for rounding, which differs with processor, kernel, thread count and batch shape. A
model whose numbers are wrong in the last digits must give the same tokens."""
import functools
import pytest, torch
from hypothesis import given, strategies as hs
import navira
from navira.models.critic import Critic
from navira.sampler.ties import ranks
from helpers.peers import KINDS
from toys import small_lm


@functools.cache
def nets(): # a model and a critic for it
    return small_lm(3, vocab_size=23), Critic.of(small_lm(5, vocab_size=23), 1).eval()

def drawn(name):
    model, critic = nets()
    hyper = dict(critic=critic) if name == 'token-critic' else {}
    return navira.sample(model, name, 8, 64, length=12, batch_size=64, **hyper)

def different(a, b): # how many texts
    return ((a.tokens != b.tokens).any(1) | (a.n_forward != b.n_forward)).sum().item()

# --- tokens ---
# A token is the winner of a race: an error of 1e-6 decides one only if the best two are as near, in
# one draw of some 100,000. Where rounding breaks ties, nearly all texts differ.
FEW = 1     # texts of 64
@pytest.mark.parametrize('name', KINDS)
def test_the_last_digits_decide_nothing(name, one_thread):
    "They differ from call to call here: helpers/kernels.py"
    assert different(drawn(name), drawn(name)) <= FEW

# --- the order ---
TIED = {torch.float64: 1e-9, torch.float32: 2e-5}     # relative

def by_hand(score, ok, u, tol):
    "Places in one row: a list, sorted; each best one with all that are as near to it, by the noise"
    free = [j for j in range(len(score)) if ok[j] and score[j] == score[j]]
    def size(v): return abs(v) if abs(v) < float('inf') else 0.
    top, ties = max((size(score[j]) for j in free), default=0.), []
    for j in sorted(free, key=lambda j: -score[j]):
        a = score[ties[-1][0]] if ties else None
        if ties and (a == score[j] or score[j] >= a - tol * (size(a) + .1 * top)):
            ties[-1].append(j)
        else: ties.append([j])
    return [j for t in ties for j in sorted(t, key=lambda j: u[j])]

near = .0, .5, .5 + 1e-12, .5 - 1e-12, -1., -1. - 1e-11, *map(float, ('inf', '-inf', 'nan'))
numbers = hs.sampled_from(near) | hs.floats(-3, 3)

@given(hs.lists(hs.tuples(numbers, hs.booleans()), min_size=1, max_size=9), hs.integers(0, 99),
       hs.sampled_from([torch.float64, torch.float32]))
def test_ranks_are_those_of_a_list_of_ties_with_the_best(row, seed, dtype):
    score, ok = (torch.tensor([part]) for part in zip(*row))
    score = score.to(dtype)
    u = torch.rand(1, len(row), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got = ranks(score, ok, u)[0]
    want = by_hand(score.double()[0].tolist(), ok[0], u[0], TIED[dtype])
    assert sorted(got) == [*range(len(row))] and got.argsort()[:len(want)].tolist() == want
