"""On an accelerator that is pretended (pretended.py): it refuses what CUDA refuses, and what
runs on it gives the CPU's results."""
import random
from dataclasses import replace
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from navira.experiments.run import run
from navira.experiments.sweep import read_sweep
from navira.evaluation.perplexity import perplexities, Reference
from navira.models.critic import Critic
from navira.models.load import load
from navira.registry import parameters, policies, policy
from navira.sampling import sample
from navira.training.critic import CriticConfig, train_critic
from navira.training.settings import FinetuneConfig, TrainConfig
from navira.training.finetune import finetune
from navira.training.loop import read_log
from navira.training.pretrain import train
from pretended import Pretended
from helpers.metrics import llama, tokenizer as words
from toys import small_lm

@pytest.fixture(autouse=True)
def alone(one_thread): pass

@pytest.fixture
def gpu():
    with Pretended() as p: yield p

# --- sampling -------------------------------------------------------------------------------------
# --------------------
def lm(**kw): return small_lm(3, model_length=8, **kw).double()

def rule(name, model):
    own = 'critic' in parameters(policies()[name])
    return policy(name, **(dict(critic=Critic.of(model, 1)) if own else {}))

@pytest.mark.parametrize('name', sorted(policies()))
def test_a_policy_gives_on_the_accelerator_what_it_gives_on_the_cpu(name):
    model = lm()
    given = dict(budget=6, n=2, prompt=[3, model.mask_id, 5, 7], trace=True)
    a = sample(model, rule(name, model), **given)
    with Pretended() as gpu: b = sample(model.to('cuda'), rule(name, model), **given)
    assert gpu.peak > 0 and not b.tokens.is_cuda
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward,
                                                           b.n_forward) and a.n_steps == b.n_steps
    for k in ('x', 'remasked', 'unmasked', 'score', 'tau', 'fixed'):
        np.testing.assert_allclose(getattr(a.trace, k), getattr(b.trace, k), atol=1e-6)


def test_batches_that_do_not_fit_are_halved_and_give_the_same_texts():
    model = lm()
    given = dict(budget=6, n=6, prompt=[3])
    whole, moved = sample(model, 'navira', **given), []
    with Pretended() as gpu:
        model.to('cuda'); held = gpu.held()
        sample(model, 'navira', **given)
        all_of_them = gpu.peak - held
    for share in (2, 4):
        with Pretended(held + all_of_them // share) as gpu:
            model.cpu().to('cuda')
            out = sample(model, 'navira', progress=lambda texts: moved.append(len(texts)), **given)
        assert torch.equal(out.tokens, whole.tokens) and torch.equal(out.n_forward, whole.n_forward)
        assert sum(moved) == 6 * out.n_steps and gpu.peak <= gpu.memory; moved.clear()
    with Pretended(held + 100), pytest.raises(torch.OutOfMemoryError):
        sample(model.cpu().to('cuda'), 'navira', **given)


@pytest.mark.skipif(not torch.cuda.is_available(),
                    reason='no GPU here; `make gpu` runs it where there is one')
def test_every_policy_on_a_real_gpu():
    for name in sorted(policies()):
        model = lm()
        given = dict(budget=6, n=2, prompt=[3, model.mask_id, 5, 7], trace=True)
        a = sample(model, rule(name, model), **given)
        b = sample(model.to('cuda'), rule(name, model), **given)
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward), name
        with torch.autocast('cuda', torch.bfloat16):
            assert (sample(model.float(), rule(name, model),
                           **given).tokens != model.mask_id).all(), name

# --- a sweep, perplexity
# -------------------------------------------------------------------------------------------------
def test_a_sweep_gives_on_the_accelerator_what_it_gives_on_the_cpu(tmp_path, anew):
    model = small_lm(3).double()
    def swept(device):
        (tmp_path / 'grid.toml').write_text(
            'n = 6\nbatch_size = 4\nbudgets = [4, 8]\nmetrics = ["entropy"]\n'
            '[[entries]]\npolicy = "navira-piecewise"\ntrace = true\n[[entries]]\npolicy = '
            '"remdm-cap"\n')
        st = run(replace(read_sweep(tmp_path / 'grid.toml'), device=device), tmp_path / device,
                 model)
        return st, st.read('samples').drop_columns('seconds')
    here, a = swept('cpu')
    AcceleratorState._reset_state(True)
    with Pretended() as gpu: there, b = swept('cuda')
    assert gpu.peak > 0 and (here.record['device'], there.record['device']) == ('cpu', 'cuda')
    assert a.equals(b)

def test_a_sweep_whose_batches_do_not_fit_says_which_setting_to_change(tmp_path, anew):
    model = small_lm(3)
    (tmp_path / 'grid.toml').write_text(
        'n = 4\nbatch_size = 4\nbudgets = [4]\nmetrics = ["entropy"]\n[[entries]]\npolicy = '
        '"prism"\n')
    s = replace(read_sweep(tmp_path / 'grid.toml'), device='cuda')
    with Pretended() as gpu: model.to('cuda'); held = gpu.held()
    with (
        Pretended(held + 500),
        pytest.raises(ValueError, match='batch_size=4: .* do not fit .*cuda:0')):
        run(s, tmp_path / 'store', model.cpu())


def test_perplexity_is_on_the_accelerator_what_it_is_on_the_cpu():
    texts = ['w1 w2 w3 w4 w5', 'w9 w8 w7', 'w4 w4 w4 w4']
    def measured(device):
        return perplexities(texts, Reference(llama().to(device), words()), ['once'])['once'].nll
    here = measured('cpu')
    with Pretended(): np.testing.assert_allclose(measured('cuda'), here, rtol=1e-4)


# --- training -------------------------------------------------------------------------------------
# --------------------
WORDS = ('the dog sees', 'the cat hears', 'an owl', 'a man', 'and then', 'the cow sleeps')

@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp('corpus'), random.Random(0)
    for name, n in (('train', 300), ('validation', 60)):
        (folder / f'{name}.txt').write_text('\n'.join(' '.join(rng.choices(WORDS, k=4))
                                                      for _ in range(n)))
    return folder

@pytest.fixture
def anew():
    "Accelerate picks a device once in a process: here it forgets it, before and after"
    AcceleratorState._reset_state(True); yield; AcceleratorState._reset_state(True)

LOOP = dict(batch_size=4, log_every=1, checkpoint_every=1, eval_every=2, eval_sequences=8,
            warmup=1, precision='fp32')
SMALL = LOOP | dict(length=16, dim=16, blocks=1, heads=2, cond_dim=8, vocab_size=280)

def numbers(*logs):
    return [
        [{k: r.get(k, 0) for k in ('step', 'loss', 'grad_norm', 'bce')}
         for r in read_log(log / 'log.jsonl')]
        for log in logs]

def trained(corpus, out, stop=None):
    "A denoiser, its head and its critic; what was logged, and the weights"
    cfg = TrainConfig(data=str(corpus), out=str(out / 'lm'), tokens=4 * 4 * 16, **SMALL)
    if stop: train(cfg, progress=False, stop=stop)
    given = dict(data=str(corpus), model=str(train(cfg, progress=False)), **LOOP)
    head = finetune(FinetuneConfig(out=str(out / 'head'), head_steps=2, joint_steps=2, **given),
                    progress=False)
    critic = train_critic(CriticConfig(out=str(out / 'critic'), steps=2, blocks=1, **given),
                          progress=False)
    weights = [dict(load(head).named_parameters()), dict(Critic.load(critic).named_parameters())]
    return numbers(out / 'lm', out / 'head' / 'head', out / 'head' / 'joint',
                   out / 'critic'), weights

# a head of two steps has no right token to rank
@pytest.mark.filterwarnings('ignore:All-NaN slice')
def test_training_gives_on_the_accelerator_what_it_gives_on_the_cpu(corpus, tmp_path, anew):
    """Pretraining, stopped and gone on with, fine-tuning and a critic: losses, gradients,
    clipping, averages, evaluations, checkpoints and exports"""
    a, weights = trained(corpus, tmp_path / 'cpu')
    AcceleratorState._reset_state(True)
    with Pretended() as gpu:
        b, others = trained(corpus, tmp_path / 'cuda', stop=2)
        # it was there: weights, gradients, two moments and the average
        assert Accelerator().device.type == 'cuda' and gpu.peak > 50_000
    for x, y in zip(a, b, strict=True):
        for r, s in zip(x, y, strict=True): assert r == pytest.approx(s, rel=1e-4)
    for x, y in zip(weights, others, strict=True):
        for k in x: torch.testing.assert_close(x[k], y[k], atol=1e-5, rtol=1e-3)

def test_a_checkpoint_of_the_accelerator_goes_on_elsewhere(corpus, tmp_path, anew):
    cfg = TrainConfig(data=str(corpus), out=str(tmp_path / 'lm'), tokens=4 * 4 * 16, **SMALL)
    with Pretended():
        train(cfg, progress=False, stop=2)
    AcceleratorState._reset_state(True)
    train(cfg, progress=False)
    assert [r['step'] for r in read_log(tmp_path / 'lm' / 'log.jsonl') if 'loss' in r] == [1, 2, 3,
                                                                                           4]
