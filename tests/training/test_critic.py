"""How a critic learns: its objective, what it converges to, and runs that are killed."""
import dataclasses, itertools, json, math, os, random, signal, subprocess, sys, time
from dataclasses import replace

import pytest
import torch

from navira.diffusion import nucleus
from navira.models.critic import Critic
from navira.models.load import load
from navira.peers.critics import token_critic
from navira.sampling import sample
from navira.training.critic import WEIGHTINGS, CriticConfig, CriticObjective, export_critic, train_critic
from navira.training.data import keyed
from navira.training.runs import read_log
from helpers.critics import Flat, Seen
from helpers.training import ROOT, home, losses, one_thread, trained  # noqa: F401
from toys import critic_like, random_joint, small_lm

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
