"""Token-Critic: joint ranking in two rules, the critic's network, its policy on toys and networks, and its training."""
import dataclasses, itertools, json, math, os, random, signal, subprocess, sys, time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats

from navira.peers.revisers import Below
from navira.models.critic import Critic
from navira.peers.critics import CriticStep, standing, token_critic
from navira.core import State, TopK, n_unmask, step
from navira.models.loading import load
from navira.models.denoiser import n_params
from navira.diffusion import Forward, nucleus
from navira.base.noise import Noise
from navira.prism import backbone
from navira.sampling import sample
from navira.training.critic import WEIGHTINGS, CriticConfig, CriticObjective, export_critic, train_critic
from navira.training.data import keyed
from navira.training.runs import read_log
from helpers.training import ROOT, home, losses, trained          # noqa: F401  fixtures
from toys import ACCEPT, counted, random_joint, small_lm


@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)


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


# --- network --------------------------------------------------------------------------------------------------------

def critic_like(model, seed=1, **kw):
    "A critic with random numbers in every parameter"
    c, g = Critic.of(model, **kw), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in c.parameters(): p.add_(.3 * torch.randn(p.shape, generator=g))
    return c.eval().requires_grad_(False)


def test_a_critic_starts_from_the_model():
    lm = small_lm()
    c = Critic.of(lm, 1)
    assert torch.equal(c.backbone.vocab_embed.embedding, lm.backbone.vocab_embed.embedding)
    assert c.backbone.vocab_embed.embedding is not lm.backbone.vocab_embed.embedding
    for k, v in c.backbone.blocks[0].state_dict().items(): assert torch.equal(v, lm.backbone.blocks[0].state_dict()[k])
    assert len(c.backbone.blocks) == 1 and (c(torch.zeros(2, 5, dtype=torch.long)).quality() == 0).all()
    with pytest.raises(ValueError, match='n_blocks=3: .* from 1 to 2'): Critic.of(lm, 3)
    with pytest.raises(ValueError, match='13 positions'): c(torch.zeros(1, 13, dtype=torch.long))


def test_saved_and_loaded(tmp_path):
    lm = small_lm()
    c, x = critic_like(lm), torch.randint(0, 10, (3, 12))
    c.save(tmp_path / 'a')
    assert torch.equal(Critic.load(tmp_path / 'a')(x).quality(), c(x).quality())
    c.save(tmp_path / 'b', torch.bfloat16)
    back = Critic.load(tmp_path / 'b')
    assert back.backbone.vocab_embed.embedding.dtype == torch.float32
    assert torch.allclose(back(x).quality(), c(x).quality(), atol=.3)
    (tmp_path / 'b' / 'critic.safetensors').write_bytes((tmp_path / 'b' / 'critic.safetensors').read_bytes()[:99])
    with pytest.raises(ValueError, match='critic.safetensors: not a readable'): Critic.load(tmp_path / 'b')
    critic_like(lm, n_blocks=1).save(tmp_path / 'c')
    (tmp_path / 'a' / 'critic.safetensors').write_bytes((tmp_path / 'c' / 'critic.safetensors').read_bytes())
    with pytest.raises(ValueError, match='not the weights of this critic. missing'): Critic.load(tmp_path / 'a')


def test_no_critic_says_how_to_train_one(tmp_path, monkeypatch):
    pass
    (tmp_path / 'critics').mkdir()
    with pytest.raises(FileNotFoundError, match='no critic.safetensors .*navira critic --data'):
        Critic.load(tmp_path / 'critics')
    with pytest.raises(FileNotFoundError, match="did you mean '.*critics'"): token_critic(str(tmp_path / 'critcs'))
    monkeypatch.setattr('navira.models.critic.WEIGHTS', tmp_path)
    for make in (Critic.load, token_critic):
        with pytest.raises(FileNotFoundError, match='no embedded critic; train one with `navira critic'): make()


def test_the_embedded_critic_is_trained_and_goes_with_the_embedded_model():
    import navira
    from navira.models.loading import WEIGHTS
    lm, record = navira.load(), json.loads((WEIGHTS / 'critic-training.json').read_text())
    rule = navira.policy('token-critic')
    rule.step.fits(lm, lm.length)
    assert record['parameters'] == n_params(rule.step.critic)
    text = lm.tokenizer.encode('It was a fine morning, and the old man walked slowly down the road to the village.').ids
    x = torch.tensor([text] * len(text))
    at = torch.randperm(len(text), generator=torch.Generator().manual_seed(0))[:20]
    for b, i in enumerate(at): x[b, i] = 2000 + 37 * b                                     # one wrong token a row
    g = rule.step.critic(x[:len(at)]).quality()
    worse = torch.stack([(g[b] > g[b, i]).float().mean() for b, i in enumerate(at)])
    assert worse.mean() > .6                                                               # .5 if it rated at random
    assert not (navira.sample(lm, rule, 4, 2).tokens == lm.mask_id).any()


def test_the_rating_does_not_hang_on_the_batch():
    c, x = critic_like(small_lm()), torch.randint(0, 10, (4, 12))
    torch.testing.assert_close(torch.cat([c(r[None]).quality() for r in x]), c(x).quality(), atol=1e-5, rtol=1e-5)


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


class Flat(Forward):
    def __init__(self, x): self.seen_masked = torch.zeros_like(x, dtype=torch.bool)
    def _quality(self): return torch.zeros(self.seen_masked.shape, dtype=torch.float64)

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


class Seen:
    "Passes on, and remembers what it was shown"
    def __init__(self, inner):
        self.inner, self.mask_id, self.length, self.shown = inner, inner.mask_id, inner.length, []
    def __call__(self, x): self.shown.append(x); return self.inner(x)


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


# --- training -------------------------------------------------------------------------------------------------------

def tiny(home, out, model, **kw):
    where = dict(data=str(home), out=str(out), model=str(model))
    small = dict(steps=8, blocks=1, batch_size=8, warmup=2, precision='no')
    often = dict(log_every=1, checkpoint_every=2, eval_every=4, eval_sequences=16)
    return CriticConfig(**(where | small | often | kw))


def test_weightings_by_hand():
    bce, t = torch.tensor([1., 2., 3.]), torch.tensor([.5, .5, .1])
    assert WEIGHTINGS['mean'](bce, t, 20).item() == 2
    assert WEIGHTINGS['1/t'](bce, t, 20).item() == pytest.approx((2 + 4 + 30) / 20)
    assert WEIGHTINGS['mean'](bce[:0], t[:0], 20).item() == 0


def test_only_the_critic_learns():
    lm, x = small_lm(dropout=.3), torch.randint(0, 10, (6, 12), generator=torch.Generator().manual_seed(0))
    o = CriticObjective(critic_like(lm).requires_grad_(True), lm).train()
    assert not lm.training and {n.split('.')[0] for n, _ in o.named_parameters()} == {'model'}
    noise = o.noise(x, keyed(0, 0, 1))
    assert [tuple(a.shape) for a in noise] == [(6, 12), (6,), (6, 12)]
    out = o(x, *noise)
    out['loss'].backward()
    assert set(out) == {'loss', 'bce', 'right'}
    assert all(v.dim() == 0 and v.isfinite() for v in out.values())
    assert all(p.grad is None for p in lm.parameters())
    assert all(p.grad is not None for p in o.model.parameters())
    nothing = o(x, x, torch.full((6,), .5), torch.rand(6, 12, dtype=torch.float64))
    assert nothing['loss'].item() == 0                                                  # a batch without masks


def test_the_fill_is_the_denoisers_distribution():
    "u through the nucleus of the logits on z, and every mask filled."
    lm, x = small_lm(), torch.randint(0, 10, (6, 12), generator=torch.Generator().manual_seed(0))
    c = Seen(critic_like(lm)); net = torch.nn.Module(); net.mask_id, net.forward = lm.mask_id, c
    o = CriticObjective(net, lm, .7)
    z, t, u = o.noise(x, keyed(1, 0, 1))
    o(x, z, t, u)
    (y,), masked = c.shown, z == lm.mask_id
    assert torch.equal(y[~masked], z[~masked])
    assert torch.equal(y[masked], nucleus(.7)(lm(z).logits(masked), u[masked])[0])


def test_train_resume_export(home, tmp_path, trained):
    whole, parts = (tiny(home, tmp_path / n, trained / 'model') for n in ('whole', 'parts'))
    assert train_critic(whole, progress=False) == tmp_path / 'whole' / 'critic'
    for stop in (3, 5): assert train_critic(parts, progress=False, stop=stop) == tmp_path / 'parts'
    (tmp_path / 'parts' / 'last.pt').unlink()                                           # back to previous.pt
    train_critic(parts, progress=False)
    assert losses(tmp_path / 'parts') == losses(tmp_path / 'whole') and len(losses(tmp_path / 'whole')) == 8
    a, b = (Critic.load(tmp_path / n / 'critic') for n in ('whole', 'parts'))
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    record = json.loads((tmp_path / 'whole' / 'critic' / 'critic-training.json').read_text())
    q = record['quality']
    assert q['low'] <= q['auroc'] <= q['high']
    assert 0 < q['right'] < 1
    assert str(home) not in json.dumps(record)
    assert record['stages'][0]['steps'] == 8
    before = {p.name: p.read_bytes() for p in (trained / 'model').iterdir()}
    # beside the model, which stays as it is
    again = export_critic(tmp_path / 'whole', trained / 'model', torch.bfloat16)
    card = (trained / 'model' / 'README.md').read_text()
    assert card.startswith(before.pop('README.md').decode().rstrip())
    assert f"AUROC {again['quality']['auroc']:.3f}" in card.split('## Critic')[1]
    assert before == {n: (trained / 'model' / n).read_bytes() for n in before}
    assert abs(again['quality']['auroc'] - q['auroc']) < .05
    with pytest.raises(ValueError, match='steps: 8 there, 9 now'): train_critic(replace(whole, steps=9), progress=False)
    lm = load(trained / 'model')
    res = sample(lm, token_critic(critic=str(trained / 'model')), 8, 3)
    assert not (res.tokens == lm.mask_id).any() and res.n_forward.tolist() == [7] * 3
    for n in ('critic.safetensors', 'critic.json', 'critic-training.json'): (trained / 'model' / n).unlink()


KILLED = '''
import sys, torch
torch.set_num_threads(1)
from navira.training.settings import FinetuneConfig, TrainConfig, read_config
from navira.training.pretraining import train
from navira.training.finetuning import finetune
from navira.training.critic import CriticConfig, train_critic
train_critic(read_config(CriticConfig, sys.argv[1]), progress=False)
'''

def test_kill_9_and_resume(home, tmp_path, trained):
    whole, cfg = (tiny(home, tmp_path / n, trained / 'model', steps=20) for n in ('whole', 'run'))
    train_critic(whole, progress=False)
    (tmp_path / 'run.py').write_text(KILLED); (tmp_path / 'c.json').write_text(json.dumps(dataclasses.asdict(cfg)))
    rng, log = random.Random(time.time_ns()), tmp_path / 'run' / 'log.jsonl'
    p = subprocess.Popen(
        [sys.executable, str(tmp_path / 'run.py'), str(tmp_path / 'c.json')],
        env=os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1'),
    )
    at = rng.randrange(2, 18)
    while p.poll() is None and not (log.exists() and max([r['step'] for r in read_log(log)], default=0) >= at):
        time.sleep(.005)
    os.kill(p.pid, signal.SIGKILL); p.wait()
    train_critic(cfg, progress=False)
    assert losses(tmp_path / 'run') == losses(tmp_path / 'whole') and len(losses(tmp_path / 'run')) == 20


@pytest.mark.parametrize(
    'kw, error, match',
    [
        (dict(weight='t'), KeyError, "weight 't'"),
        (dict(steps=0), ValueError, 'steps=0: expected at least 1$'),
        (dict(nucleus=0), ValueError, 'nucleus=0'),
        (dict(blocks=1.5), ValueError, 'blocks=1.5: expected int'),
    ],
)
def test_bad_settings(kw, error, match):
    with pytest.raises(error, match=match): CriticConfig(data='d', out='o', **kw)


def test_too_many_blocks_cost_nothing(home, tmp_path, trained):
    with pytest.raises(ValueError, match='n_blocks=5: .* from 1 to 1'):
        train_critic(tiny(home, tmp_path / 'r', trained / 'model', blocks=5), progress=False)
    assert not (tmp_path / 'r').exists()


def test_the_command(home, tmp_path, trained, capsys):
    "`navira critic` with a settings file, flags over it; a mistake is one line and exit code 2."
    from navira.cli.app import main
    (tmp_path / 'c.toml').write_text('steps = 4\nblocks = 1\nbatch_size = 4\neval_sequences = 16\nprecision = "no"\n')
    args = [
        'critic', str(tmp_path / 'c.toml'), '--data', str(home), '--model', str(trained / 'model'),
        '--out', str(tmp_path / 'run'), '--steps', '3', '--set', 'weight=1/t',
    ]
    with pytest.raises(SystemExit) as e: main(args)
    assert e.value.code in (0, None) and 'critic: ' in capsys.readouterr().out and len(losses(tmp_path / 'run')) == 1
    assert json.loads((tmp_path / 'run' / 'run.json').read_text())['weight'] == '1/t'
    assert Critic.load(tmp_path / 'run' / 'critic').length == 16
    mistakes = [
        (['--set', 'weigt=1/t'], "did you mean 'weight'?"),
        (['--steps', '0'], 'steps=0'),
        (['--data', str(home) + 'x', '--out', str(tmp_path / 'other')], 'did you mean'),
        (['--model', str(tmp_path / 'mo')], 'not found'),
    ]
    for more, expected in mistakes:
        with pytest.raises(SystemExit) as e: main(args + more)
        printed = capsys.readouterr()
        assert e.value.code == 2 and expected in printed.err and len(printed.err.strip().splitlines()) == 1, printed


class Table(torch.nn.Module):
    "A critic with a number of its own for every text and position"
    def __init__(self, joint, g):
        super().__init__()
        self.mask_id, self.state, self.g = joint.mask_id, joint.state, torch.nn.Parameter(g)
    def forward(self, y):
        q = Flat(y)
        q._cached = self.g[self.state(y)]
        return q


def minimiser(m):
    "[states, L] P(x_j = y_j | y, j was filled), over texts, levels t, masks and fills, by enumeration"
    V, L = m.mask_id, m.length
    hit = torch.zeros((V + 1) ** L, L, dtype=torch.float64)
    seen = torch.full_like(hit, 1e-300)
    for x, px in zip(m.outcomes, m.joint.flatten()):
        for hidden in itertools.product([False, True], repeat=L):
            h = torch.tensor(hidden); k = sum(hidden)
            # t uniform
            z, pz = torch.where(h, V, x), px * math.factorial(k) * math.factorial(L - k) / math.factorial(L + 1)
            p = m(z[None]).logits(torch.ones(1, L, dtype=torch.bool)).exp()
            for y in m.outcomes[(m.outcomes == x).logical_or(h).all(1)]:
                w = pz * p.gather(1, y[:, None])[h].prod()
                i = m.state(y[None])
                seen[i, h] += w; hit[i, h] += w * (x == y)[h].double()
    return hit / seen


def test_what_the_critic_learns():
    "The gradient vanishes at P(right | filled text), mixed over what was filled, and not at the oracle (Eq. 2)."
    m, B = random_joint(3, 3, 2), 200_000
    states = m.state(m.outcomes)
    right = minimiser(m)[states]
    oracle = m(m.outcomes).quality().sigmoid()
    x = m.outcomes[torch.multinomial(m.joint.flatten(), B, True, generator=keyed(0, 1))]
    worst = {}
    for name, prob in (('minimiser', right), ('oracle', oracle)):
        critic = Table(m, torch.zeros(4 ** 3, 3, dtype=torch.float64).index_copy(0, states, prob.logit()))
        o = CriticObjective(critic, m, 1.)
        z, t, u = o.noise(x, keyed(0, 0, 1))
        o(x, z, t, u)['loss'].backward()
        masked = z == m.mask_id
        y = z.masked_scatter(masked, nucleus(1.)(m(z).logits(masked), u[masked])[0])
        n = torch.zeros(4 ** 3, 3, dtype=torch.float64).index_add(0, m.state(y), masked.double())[states]
        # standard errors
        worst[name] = (critic.g.grad[states] * masked.sum() / (n * prob * (1 - prob)).sqrt()).abs().max().item()
    assert worst['minimiser'] < 5 and worst['oracle'] > 20, worst


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
