"""On an accelerator that is pretended (pretended.py): it refuses what CUDA refuses, and what runs on it gives the CPU's
results."""
import copy, gc, random, subprocess, threading
from dataclasses import replace
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
import navira.experiments.samples as ex_samples
from navira.experiments.old_sweep import cells, read_sweep
from navira.experiments.old_store import checked
from navira.experiments.old_results import committed
from navira.experiments.old_run import run
from navira.evaluation.perplexity import perplexities, Reference
from navira.evaluation.diversity import distinct, entropy, grouped, pooled_entropy, repetition, self_bleu
from navira.evaluation.mauve import features
from navira.evaluation.trajectories import lifetime, overlap, reselected
from navira.models.critic import Critic
from navira.models.load import load
from navira.registry import parameters, policies, policy
from navira.sampling import sample
from navira.training.critic import CriticConfig, train_critic
from navira.training.settings import FinetuneConfig, TrainConfig
from navira.training.finetuning import finetune
from navira.training.runs import read_checkpoint, read_log
from navira.training.pretraining import train
from pretended import CUDA, Pretended
from helpers.metrics import llama, tokenizer as words
from toys import small_lm

@pytest.fixture(autouse=True)
def alone(one_thread): pass

@pytest.fixture
def gpu():
    with Pretended() as p: yield p

def there(*shape): return torch.ones(shape, device='cuda')

# --- the pretended accelerator ----------------------------------------------------------------------------------------
def out_of(x): return torch.add(there(3), there(3), out=x)

REFUSED = dict(
    sum=lambda: there(3) + torch.ones(3), reversed=lambda: torch.ones(3) + there(3),
    scalar_there=lambda: torch.ones(3) + there(), product=lambda: there(2, 3) @ torch.ones(3, 2),
    linear=lambda: F.linear(there(2, 3), torch.ones(4, 3)),
    embedding=lambda: F.embedding(torch.zeros(2, dtype=torch.long), there(3, 2)),
    cat=lambda: torch.cat([there(2), torch.ones(2)]), stack=lambda: torch.stack([there(), torch.ones(())]),
    where=lambda: torch.where(torch.ones(3) > 0, there(3), there(3)),
    gather=lambda: there(2, 3).gather(1, torch.zeros(2, 1, dtype=torch.long)),
    scatter=lambda: there(2, 3).scatter(1, torch.zeros(2, 1, dtype=torch.long), 1.0),
    searchsorted=lambda: torch.searchsorted(there(3), torch.ones(2)),
    equal=lambda: torch.equal(there(3), torch.ones(3)),
    masked_scatter=lambda: there(3).masked_scatter(there(3) > 0, torch.ones(3)),
    masked_fill=lambda: there(3).masked_fill(torch.ones(3) > 0, 0.0), in_place=lambda: torch.ones(3).add_(there(3)),
    in_place_scalar=lambda: torch.ones(()).add_(there()), augmented=lambda: torch.ones(3).__iadd__(there(3)),
    out=lambda: out_of(torch.ones(3)), mask_of_a_cpu_tensor=lambda: torch.ones(3)[there(3) > 0],
    index_of_a_cpu_tensor=lambda: torch.ones(3)[torch.zeros(2, dtype=torch.long, device='cuda')],
    values_put=lambda: there(3).__setitem__(torch.tensor([0, 1]), torch.ones(2)),
    values_put_on_the_cpu=lambda: torch.ones(3).__setitem__(torch.tensor([0, 1]), there(2)),
    cross_entropy=lambda: F.cross_entropy(there(2, 3), torch.zeros(2, dtype=torch.long)),
    view=lambda: there(4).view(2, 2)[0] + torch.ones(2),
    lerp_all=lambda: torch._foreach_lerp_([there(2)], [torch.ones(2)], 0.5),
    generator=lambda: torch.rand(3, device='cuda', generator=torch.Generator()),
    generator_in_place=lambda: there(3).uniform_(generator=torch.Generator()),
    permutation=lambda: torch.randperm(3, generator=torch.Generator(), device='cuda'),
    gradient=lambda: setattr(there(3).requires_grad_(), 'grad', torch.ones(3)), pin=lambda: there(3).pin_memory(),
    numpy=lambda: there(3).numpy(), asarray=lambda: np.asarray(there(3)), array_of=lambda: np.array([there(), there()]),
    detached=lambda: there(3).requires_grad_().detach().numpy())

@pytest.mark.parametrize('f', REFUSED.values(), ids=REFUSED.keys())
def test_what_cuda_refuses_is_refused(gpu, f):
    with pytest.raises((RuntimeError, TypeError)): f()

ALLOWED = dict(  # a call, and where its result lives
    sum=(lambda: there(3) + there(3), True),
    number=(lambda: 2 * there(3) + 1, True),
    scalar=(lambda: there(3) * torch.tensor(2.0), True),
    scalar_first=(lambda: torch.tensor(2.0) * there(3), True),
    fill=(lambda: there(3).masked_fill(there(3) > 0, torch.tensor(2.0)), True),
    choice=(lambda: torch.where(there(3) > 0, torch.tensor(1.0), there(3)), True),
    cpu=(lambda: there(3).cpu() + torch.ones(3), False),
    to_cpu=(lambda: there(3).to('cpu') + torch.ones(3), False),
    to_cpu_as=(lambda: there(3).to('cpu', torch.float64), False),
    to=(lambda: torch.ones(3).to(CUDA) + there(3), True),
    to_cuda=(lambda: torch.ones(3).cuda() + there(3), True),
    to_index=(lambda: torch.ones(3).to(0) + there(3), True),
    keyword=(lambda: torch.ones(3).to(device='cuda', dtype=torch.float64), True),
    like_another=(lambda: torch.ones(3).to(there(1)), True),
    like_one_here=(lambda: there(3).to(torch.ones(1)), False),
    kind=(lambda: there(3).to(torch.float64), True),
    type_as=(lambda: torch.ones(3).type_as(there(1)), True),
    zeros_like=(lambda: torch.zeros_like(there(3)), True),
    zeros_like_here=(lambda: torch.zeros_like(there(3), device='cpu'), False),
    new=(lambda: there(3).new_zeros(2), True),
    new_tensor=(lambda: there(3).new_tensor([1.0, 2.0]), True),
    factory=(lambda: torch.arange(3), False),
    tensor=(lambda: torch.tensor([1.0], device='cuda'), True),
    as_tensor=(lambda: torch.as_tensor(torch.ones(3), device='cuda'), True),
    from_numpy=(lambda: torch.from_numpy(np.ones(3)), False),
    from_numpy_to=(lambda: torch.from_numpy(np.ones(3)).to('cuda'), True),
    indices=(lambda: there(3)[torch.tensor([0, 2])], True),
    mask=(lambda: there(3)[torch.tensor([True, False, True])], True),
    index_there=(lambda: torch.ones(3)[torch.zeros((), dtype=torch.long, device='cuda')], False),
    copy_back=(lambda: torch.ones(3).copy_(there(3)), False),
    copy_there=(lambda: there(3).copy_(torch.ones(3)), True),
    rows=(lambda: torch.stack([*there(2, 3)]), True),
    view=(lambda: there(2, 3).T[0], True),
    parts=(lambda: there(4).chunk(2)[1], True),
    sorted=(lambda: there(3).sort().values, True),
    pinned=(lambda: torch.ones(3).pin_memory(), False),
    own_generator=(lambda: torch.rand(3, generator=torch.Generator()).to('cuda'), True),
    product=(lambda: there(2, 3) @ there(3, 2), True),
    copied=(lambda: copy.deepcopy(there(3)), True),
    parameter=(lambda: nn.Parameter(there(3)), True),
    detached=(lambda: there(3).requires_grad_().detach(), True),
    sliced=(lambda: (lambda x: (x.__setitem__(slice(0, 2), there(2)), x)[1])(torch.zeros(3)), False),
    put=(lambda: (lambda x: (x.__setitem__(torch.tensor([0, 1]), there(2)), x)[1])(there(3)), True),
)

@pytest.mark.parametrize('f, where', ALLOWED.values(), ids=ALLOWED.keys())
def test_what_cuda_allows_is_allowed(gpu, f, where):
    x = f()
    assert (x.device.type == 'cuda', x.is_cuda, not x.is_cpu) == (where,) * 3 and (not where or x.device == CUDA)

def test_what_waits_for_the_device_is_allowed(gpu):
    x = there(2)
    assert (
        x.tolist() == [1.0, 1.0] and x[0].item() == 1.0 and bool(x.any()) and int(x.sum()) == 2
        and list(range(5))[x.long()[0]] == 1 and len(x) == 2 and 'ones' not in repr(x))

def test_a_transfer_is_a_copy_and_a_tensor_that_is_there_is_itself(gpu):
    a = torch.zeros(3); b = a.to('cuda'); c = b.cpu(); d = torch.as_tensor(a, device='cuda')
    b += 1; c += 2; d += 4
    assert (a.tolist(), b.tolist(), c.tolist()) == ([0.] * 3, [1.] * 3, [2.] * 3) and b.to('cuda') is b and a.cpu() is a

def test_where_a_tensor_lives_does_not_depend_on_names_that_are_used_again(gpu):
    for i in range(300):
        x = torch.ones(2, device='cuda') if i % 3 else torch.ones(2)
        assert x.is_cuda == bool(i % 3)
        del x
    gc.collect()
    assert gpu.held() == 0

def test_modules_and_gradients_live_where_their_parameters_do(gpu):
    net = nn.Linear(3, 2); w = net.weight
    net.to('cuda')
    # in place, so that an optimizer made before still knows them
    assert net.weight is w and w.is_cuda and isinstance(w, nn.Parameter)
    net(there(4, 3)).sum().backward()
    assert w.grad.is_cuda and torch.autograd.grad(net(there(4, 3)).sum(), [w])[0].is_cuda
    with pytest.raises(RuntimeError, match='same device'): net(torch.ones(4, 3))
    net.cpu()
    assert not net.weight.is_cuda and net(torch.ones(4, 3)).shape == (4, 2)

def test_nothing_is_left_behind():
    available = torch.cuda.is_available()
    with Pretended():
        assert torch.cuda.is_available() and torch.autocast('cuda', torch.bfloat16).fast_dtype == torch.bfloat16
        x = there(3)
    assert torch.cuda.is_available() == available and x.device.type == 'cpu' and torch.autocast.__name__ == 'autocast'

def test_a_thread_has_modes_of_its_own(gpu):
    x, seen = there(3), []
    t = threading.Thread(target=lambda: seen.append(x.is_cuda)); t.start(); t.join()
    # so nothing that uses the accelerator may run in threads: `parallel_map` does not
    assert seen == [False] and x.is_cuda

def test_memory_is_counted():
    with Pretended(memory=4000) as gpu:
        a = there(500)
        assert gpu.held() == torch.cuda.memory_allocated() == 2000
        with pytest.raises(torch.OutOfMemoryError): there(501)
        b = a[:100]; del a
        assert gpu.held() == 2000      # the view keeps all of it
        del b; torch.cuda.reset_peak_memory_stats()
        there(700)
        assert (gpu.held(), torch.cuda.max_memory_allocated()) == (0, 2800)

# --- sampling ---------------------------------------------------------------------------------------------------------
def lm(**kw): return small_lm(3, model_length=8, **kw).double()

def rule(name, model):
    own = 'critic' in parameters(policies()[name])
    return policy(name, **(dict(critic=Critic.of(model, 1)) if own else {}))

@pytest.mark.parametrize('trace', [False, True])
@pytest.mark.parametrize('name', sorted(policies()))
def test_a_policy_gives_on_the_accelerator_what_it_gives_on_the_cpu(name, trace):
    model = lm()
    given = dict(budget=6 if trace else 4, n=2, prompt=[3, model.mask_id, 5, 7], trace=trace)
    a = sample(model, rule(name, model), **given)
    with Pretended() as gpu: b = sample(model.to('cuda'), rule(name, model), **given)
    assert gpu.peak > 0 and not b.tokens.is_cuda
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward) and a.n_steps == b.n_steps
    for k in ('x', 'remasked', 'unmasked', 'score', 'tau', 'fixed') if trace else ():
        np.testing.assert_allclose(getattr(a.trace, k), getattr(b.trace, k), atol=1e-6)

def test_a_prompt_may_lie_on_the_accelerator(gpu):
    for model in (lm(), lm().to('cuda')):
        found = sample(model, 'prism', budget=4, n=1, prompt=torch.tensor([3, 5], device='cuda'))
        assert found.tokens[0, :2].tolist() == [3, 5]

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
    with Pretended(held + 100), pytest.raises(torch.OutOfMemoryError): sample(model.cpu().to('cuda'), 'navira', **given)

@pytest.mark.parametrize('name', ['prism', 'navira-piecewise', 'navira-onepass', 'dream-entropy'])
def test_bfloat16_of_the_accelerator_is_asked_for_where_the_tensors_are(name):
    "Under autocast for a GPU: with one for the CPU alone the model would stay in float32"
    model = small_lm(3)
    given = dict(budget=6, n=2, prompt=[3, model.mask_id, 5, 7])
    with torch.autocast('cpu', torch.bfloat16): a = sample(model, name, **given)
    with Pretended(), torch.autocast('cuda', torch.bfloat16):
        x = torch.full((1, 4), model.mask_id, device='cuda')
        assert (
            model.to('cuda')(x).before.dtype == torch.float32
            and model.backbone.blocks[0].attn_qkv(torch.ones(2, 16, device='cuda')).dtype == torch.bfloat16)
        b = sample(model, name, **given)
    assert torch.equal(a.tokens, b.tokens)

@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU here; `make gpu` runs it where there is one')
def test_every_policy_on_a_real_gpu():
    for name in sorted(policies()):
        model = lm()
        given = dict(budget=6, n=2, prompt=[3, model.mask_id, 5, 7], trace=True)
        a = sample(model, rule(name, model), **given)
        b = sample(model.to('cuda'), rule(name, model), **given)
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward), name
        with torch.autocast('cuda', torch.bfloat16):
            assert (sample(model.float(), rule(name, model), **given).tokens != model.mask_id).all(), name

# --- a sweep, metrics -------------------------------------------------------------------------------------------------
def test_a_sweep_gives_on_the_accelerator_what_it_gives_on_the_cpu(tmp_path, anew):
    model = small_lm(3).double()
    def swept(device):
        (tmp_path / 'grid.toml').write_text(
            'n = 6\nbatch_size = 4\nbudgets = [4, 8]\nmetrics = ["entropy"]\n'
            '[[entries]]\npolicy = "navira-piecewise"\ntrace = true\n[[entries]]\npolicy = "remdm-cap"\n')
        st = run(replace(read_sweep(tmp_path / 'grid.toml'), device=device), tmp_path / device, model)
        return st, {
            k: (
                ex_samples.tokens(st, k),
                *(checked(st.cell(k))[0][c].to_pylist() for c in ('crc', 'n_forward', 'n_remasked')))
            for k in st.keys}
    here, a = swept('cpu')
    AcceleratorState._reset_state(True)
    with Pretended() as gpu: there, b = swept('cuda')
    assert gpu.peak > 0 and (here.record['device'], there.record['device']) == ('cpu', 'cuda') and list(a) == list(b)
    for k in a: assert torch.equal(a[k][0], b[k][0]) and a[k][1:] == b[k][1:]

def test_a_sweep_whose_batches_do_not_fit_says_which_setting_to_change(tmp_path, anew):
    model = small_lm(3)
    (tmp_path / 'grid.toml').write_text(
        'n = 4\nbatch_size = 4\nbudgets = [4]\nmetrics = ["entropy"]\n[[entries]]\npolicy = "prism"\n')
    s = replace(read_sweep(tmp_path / 'grid.toml'), device='cuda')
    with Pretended() as gpu: model.to('cuda'); held = gpu.held()
    with (
        Pretended(held + 500),
        pytest.raises(ValueError, match='batch_size=4: 4 texts .* do not fit .*cuda:0; .*batch_size=2')):
        run(s, tmp_path / 'store', model.cpu())

TEXTS = [' '.join(f'w{i}' for i in np.random.default_rng(k).integers(0, 28, 12)) for k in range(6)]

def measured(device):
    "Every metric that takes tensors, handed those of the device"
    model, reference = lm().to(device), Reference(llama().to(device), words())
    a, b = (
        sample(model, name, budget=k, n=4, trace=True, on=0.0, n_remask=1)
        for name, k in (('navira-det', 8), ('prism', 4)))
    tokens, gone, others, new = (t.to(device) for t in (a.tokens, a.trace.remasked, b.trace.remasked, a.trace.unmasked))
    life = lifetime(gone, new)
    under = perplexities(TEXTS, reference, ['once', 'stop'])
    yield 'perplexity', [under['once'].nll, under['stop'].nll, under['once'].interval()]
    yield 'features', [features(reference, TEXTS)]
    of_tokens = entropy, pooled_entropy, distinct, self_bleu, repetition
    yield 'tokens', [f(tokens) for f in of_tokens]
    yield 'groups', [grouped(pooled_entropy, tokens, 2).interval()]
    yield (
        'overlap',
        [r.interval() for how in ('both', 'either') for r in overlap(gone, others).mean(how).values()])
    yield 'reselected', [reselected(gone).interval(), reselected(gone, 1).value]
    yield 'lifetime', [life.censored.interval(), life.mean_ended.interval(), life.survival()]

def test_metrics_give_on_the_accelerator_what_they_give_on_the_cpu():
    pytest.importorskip('transformers')
    here = dict(measured('cpu'))
    with Pretended():
        for name, found in measured('cuda'):
            for x, y in zip(here.pop(name), found, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-4, err_msg=name)
    assert not here

# --- `make gpu` -------------------------------------------------------------------------------------------------------
def test_make_gpu_has_four_parts(root, tmp_path):
    lines = subprocess.run(
        ['make', '-n', 'gpu', f'GPU_OUT={tmp_path}', 'GPU_DEVICE=cuda'], cwd=root, capture_output=True, text=True,
        check=True).stdout
    at = [
        lines.index(part)
        for part in (
            'pytest -m "not slow"', '-k real_gpu', 'benchmarks/sampling.py --device cuda --dtype bfloat16',
            'navira sweep one-gpu', 'navira evaluate', 'navira report', 'tools/run_nbs.py',
            'nbs/experiments/results.ipynb')
    ]
    assert at == sorted(at) and 'no GPU here' in lines
    for part in ('tests', 'benchmark'): (tmp_path / f'{part}.done').touch()
    rest = subprocess.run(
        ['make', '-n', 'gpu', f'GPU_OUT={tmp_path}'], cwd=root, capture_output=True, text=True, check=True).stdout
    # what was done is not done again
    assert 'pytest -m' not in rest and 'sampling.py' not in rest and 'navira sweep one-gpu' in rest

def test_the_rehearsal_of_make_gpu_is_small_and_has_what_the_notebooks_read(root):
    s, big = read_sweep(root / 'tests' / 'rehearsal.toml'), read_sweep('one-gpu')
    plan = cells(s)
    assert (
        sum(c.n * c.budget for c in plan) < 1000 < sum(c.n * c.budget for c in cells(big))
        and s.metrics == big.metrics and s.reference == big.reference)
    assert {'backbone', 'prism', 'navira-det'} == {c.policy for c in plan}

def test_a_notebook_reads_the_store_that_the_variable_names(root, tmp_path, monkeypatch):
    monkeypatch.setenv('NAVIRA_RESULTS', str(tmp_path / 'none'))
    with pytest.raises(FileNotFoundError, match='none'): committed()
    monkeypatch.setenv('NAVIRA_RESULTS', str(root / 'results' / 'small'))
    assert [p.resolve() for p in committed()] == [root / 'results' / 'small']
    monkeypatch.delenv('NAVIRA_RESULTS'); monkeypatch.chdir(root / 'nbs' / 'experiments')
    assert committed()[-1].resolve() == root / 'results' / 'small'

# --- training ---------------------------------------------------------------------------------------------------------
WORDS = ('the dog sees', 'the cat hears', 'an owl', 'a man', 'and then', 'the cow sleeps')

@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp('corpus'), random.Random(0)
    for name, n in (('train', 300), ('validation', 60)):
        (folder / f'{name}.txt').write_text('\n'.join(' '.join(rng.choices(WORDS, k=4)) for _ in range(n)))
    return folder

@pytest.fixture
def anew():
    "Accelerate picks a device once in a process: here it forgets it, before and after"
    AcceleratorState._reset_state(True); yield; AcceleratorState._reset_state(True)

LOOP = dict(batch_size=4, log_every=1, checkpoint_every=1, eval_every=2, eval_sequences=8, warmup=1, precision='no')
SMALL = LOOP | dict(length=16, dim=16, blocks=1, heads=2, cond_dim=8, vocab_size=280)

def numbers(*logs):
    return [
        [{k: r.get(k, 0) for k in ('step', 'loss', 'grad_norm', 'nelbo', 'bce')} for r in read_log(log / 'log.jsonl')]
        for log in logs]

def trained(corpus, out, stop=None):
    "A denoiser, its head and its critic; what was logged, and the weights"
    cfg = TrainConfig(data=str(corpus), out=str(out / 'lm'), tokens=4 * 4 * 16, **SMALL)
    if stop: train(cfg, progress=False, stop=stop)
    given = dict(data=str(corpus), model=str(train(cfg, progress=False)), **LOOP)
    head = finetune(FinetuneConfig(out=str(out / 'head'), head_steps=2, joint_steps=2, **given), progress=False)
    critic = train_critic(CriticConfig(out=str(out / 'critic'), steps=2, blocks=1, **given), progress=False)
    weights = [dict(load(head).named_parameters()), dict(Critic.load(critic).named_parameters())]
    return numbers(out / 'lm', out / 'head' / 'head', out / 'head' / 'joint', out / 'critic'), weights

@pytest.mark.filterwarnings('ignore:All-NaN slice')     # a head of two steps has no right token to rank
def test_training_gives_on_the_accelerator_what_it_gives_on_the_cpu(corpus, tmp_path, anew):
    """Pretraining, stopped and gone on with, fine-tuning and a critic: losses, gradients, clipping, averages,
    evaluations, checkpoints and exports"""
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
        there = read_checkpoint(tmp_path / 'lm', torch.device('cuda'))
        assert all(t.is_cuda for t in there['ema'].values()) and all(
            t.is_cuda for s in there['optimizer']['state'].values() for t in s.values())
    AcceleratorState._reset_state(True)
    train(cfg, progress=False)
    assert [r['step'] for r in read_log(tmp_path / 'lm' / 'log.jsonl') if 'loss' in r] == [1, 2, 3, 4]
