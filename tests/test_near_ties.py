"""Another machine, made of noise: what a sum's last bits are decides nothing. From an empty
start every position of a text looks the same to a network, so the scores of all of them are
equal but for rounding, which differs with processor, kernel, thread count and batch shape. A
model whose numbers are wrong in the last digits must give the same tokens."""
import copy, functools, os, subprocess, sys, signal
from pathlib import Path
import pytest, torch
from hypothesis import given, strategies as hs
import navira
from navira.models.critic import Critic
from navira.core import ranks, reaches
from navira.diffusion import Forward, drawer
from navira.models.products import HAS_ONEDNN, set_products
from navira.registry import parameters, policies
from toys import small_lm

POLICIES = sorted(policies())
CRITICS = [name for name, factory in policies().items() if 'critic' in parameters(factory)]
L, BUDGET = 12, 8

class Jittered(Forward):
    "A forward whose numbers are multiplied by 1 + eps or 1 - eps, at random"
    def __init__(self, inner, eps, g):
        self.inner, self.eps, self.g, self.seen_masked = inner, eps, g, inner.seen_masked
        self.share = inner.share
    def off(self, v): return v * (1 + self.eps
                                  * (2 * torch.randint(2, v.shape, generator=self.g)
                                     - 1).to(v.dtype))
    def logits(self, where): return self.off(self.inner.logits(where))
    def left_out(self, where): return self.off(self.inner.left_out(where))
    def _quality(self): return self.off(self.inner.quality())

class Elsewhere:
    "The same model on another machine; `calls` counts what it was asked"

    def __init__(self, model, eps, seed=0):
        self.model, self.eps, self.calls = model, eps, 0
        self.g = torch.Generator().manual_seed(seed)
    def __getattr__(self, name): return getattr(self.model, name)
    def off(self, run, *args): self.calls += 1; return Jittered(run(*args), self.eps, self.g)
    def __call__(self, x): return self.off(self.model, x)
    def partial(self, *part): return self.off(self.model.partial, *part)
    def shadow(self, *args): return self.off(self.model.shadow, *args)
    def embedded(self, *args): return self.off(self.model.embedded, *args)
    def attending(self, x):
        self.calls += 1
        p, read = self.model.attending(x)
        off = Jittered(p, self.eps, self.g)
        return off, off.off(read)

@functools.cache
def nets(dtype): # a model and a critic for it, from the same weights in either precision
    model = small_lm(3, vocab_size=23)
    return model.to(dtype), Critic.of(small_lm(5, vocab_size=23), 1).to(dtype).eval()

def drawn(name, model, critic, n, seed=0, **kw):
    hyper = dict(critic=critic) if name in CRITICS else {}
    if name in ('fast-dllm', 'fast-dllm-plus', 'dus', 'rdd'): hyper['block_length'] = 8
    return navira.sample(model, name, BUDGET, n, seed, L, **dict(batch_size=n) | hyper | kw)

def different(a, b): # how many texts
    return ((a.tokens != b.tokens).any(1) | (a.n_forward != b.n_forward)).sum().item()

# --- tokens ---------------------------------------------------------------------------------------
# -------------------
# A token is the winner of a race: an error of 1e-6 decides one only if the best two are as near, in
# one draw of some 100,000. Where rounding breaks ties, nearly all texts differ.
FEW = 1     # texts of 64
@pytest.mark.parametrize('dtype, eps', [(torch.float64, 1e-13), (torch.float32, 1e-6)],
                         ids=['float64', 'float32'])
@pytest.mark.parametrize('name', POLICIES)
def test_the_last_digits_decide_nothing(name, dtype, eps, one_thread):
    model, critic = nets(dtype)
    far, far_critic = Elsewhere(model, eps), Elsewhere(critic, eps, 1)
    assert different(drawn(name, model, critic, 64), drawn(name, far, far_critic, 64)) <= (
        0 if dtype == torch.float64 else FEW
    )
    assert far.calls and (far_critic.calls or name not in CRITICS)

@pytest.mark.skipif(not HAS_ONEDNN, reason='this PyTorch has no oneDNN')
@pytest.mark.parametrize('name', POLICIES)
def test_either_product_gives_the_same_tokens(name, one_thread):
    plain = nets(torch.float32)
    one = [set_products(copy.deepcopy(net), 'onednn') for net in plain]
    assert different(drawn(name, *plain, 32), drawn(name, *one, 32)) <= FEW

HERE = torch.backends.cpu.get_cpu_capability()
MODES = [m for m in ('default', 'avx2', 'avx512') if m.upper() != HERE]  # of PyTorch's kernels
CODE = 'import test_frozen, test_near_ties as t; print(t.HERE, test_frozen.changed())'

@pytest.mark.parametrize('mode', MODES)
def test_every_kernel_gives_the_same_tokens(mode):
    "A mode that the processor lacks is the best that it has"
    env = os.environ | dict(ATEN_CPU_CAPABILITY=mode, PYTHONPATH=os.pathsep.join(sys.path))
    out = subprocess.run([sys.executable, '-c', CODE], env=env, cwd=Path(__file__).parent,
                         capture_output=True, text=True)
    if out.returncode == -signal.SIGILL or not out.stdout.startswith(mode.upper()):
        pytest.skip(f'this processor has no {mode}')
    assert out.stdout == f'{mode.upper()} []\n', out.stderr

# --- the order ------------------------------------------------------------------------------------
# -------------------
TIED = {torch.float64: 1e-9, torch.float32: 2e-5}     # relative

def by_hand(score, ok, u, tol):
    "Places in one row: a list, sorted; each best one with all that are as near to it, by the noise"
    free = [j for j in range(len(score)) if ok[j] and score[j] == score[j]]
    top = max((abs(score[j]) for j in free if abs(score[j]) < float('inf')), default=0.)
    ties, size = [], lambda v: 0. if abs(v) == float('inf') else abs(v)
    for j in sorted(free, key=lambda j: -score[j]):
        a = score[ties[-1][0]] if ties else None
        if ties and (a == score[j] or score[j] >= a - tol * (size(a) + .1 * top)):
            ties[-1].append(j)
        else: ties.append([j])
    order = [j for t in ties for j in sorted(t, key=lambda j: u[j])]
    return {j: k for k, j in enumerate(order)}

numbers = hs.one_of(
    hs.sampled_from(
        [0.0, 0.5, 0.5 + 1e-12, 0.5 - 1e-12, -1.0, -1.0 - 1e-11, float('inf'), float('-inf'),
         float('nan')]
    ),
    hs.floats(-3, 3),
)

@given(
    hs.lists(hs.tuples(numbers, hs.booleans()), min_size=1, max_size=9),
    hs.integers(0, 99),
    hs.sampled_from([torch.float64, torch.float32]),
)
def test_ranks_are_those_of_a_list_of_ties_with_the_best(row, seed, dtype):
    score, ok = torch.tensor([[v for v, _ in row]],
                             dtype=dtype), torch.tensor([[b for _, b in row]])
    u = torch.rand(1, len(row), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got, want = (
        ranks(score, ok, u)[0].tolist(),
        by_hand(score.double()[0].tolist(), ok[0].tolist(), u[0].tolist(), TIED[dtype]),
    )
    assert sorted(got) == list(range(len(row))) and all(got[j] == k for j, k in want.items())


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_many_near_values_do_not_chain(dtype):
    "Each is within the tolerance of the next, but the first in rank ties with the best of all"
    g, near = torch.Generator().manual_seed(0), TIED[dtype]
    score = (.5 + 100 * near * torch.rand(8, 1024, generator=g, dtype=torch.float64)).to(dtype)
    rank = ranks(score, score > 0, torch.rand(8, 1024, generator=g))
    by_rank = score.double().gather(1, rank.argsort(1))
    assert (by_rank >= by_rank.flip(1).cummax(1).values.flip(1) - near).all()
    assert (rank.argsort(1) != score.argsort(1, descending=True)).any()

@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_a_threshold_is_reached_up_to_rounding(dtype):
    third = torch.tensor([1 / 3], dtype=dtype)
    assert reaches(third, 1 / 3) and reaches(-third, -1 / 3) and reaches(1 - third - third, 1 / 3)
    assert reaches(third, float('-inf'))
    assert not reaches(third, 1 / 3 + 1e-4) and not reaches(-third, 1e-4 - 1 / 3)
    assert not reaches(torch.tensor([torch.nan], dtype=dtype), 0.) and not reaches(third,
                                                                                   float('inf'))

# --- tokens that are equally likely
# ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    'd',
    [
        drawer(0.0),
        drawer(0.0, 0.5),
        drawer(0.0, 1.0, 2),
        drawer(1.0, 0.5),
        drawer(1.0, 0.75),
        drawer(0.5, 0.9, keep_crossing=True),
        drawer(1.0, 1.0, 3),
    ],
    ids=str,
)
def test_of_tokens_that_are_equally_likely_rounding_takes_none(d):
    """Six tokens, four of them with probability 1/5, so that a nucleus of .5 or .75 and a top 2
    or 3 cut among equals"""
    g, u = torch.Generator().manual_seed(0), (torch.arange(600, dtype=torch.float64) + .5) / 600
    logits = torch.tensor([.1, .2, .2, .1, .2, .2], dtype=torch.float64).log().repeat(600, 1)
    off = lambda: logits * (1 + 1e-13 * (2 * torch.randint(2, logits.shape, generator=g) - 1))
    tokens, q = d(logits, u)
    for _ in range(3):
        others, r = d(off(), u)
        assert torch.equal(tokens, others); torch.testing.assert_close(q, r)
    assert tokens.unique().numel() > 1
