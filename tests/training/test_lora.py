"""A quality head on a model of the transformers library: LoRA, frozen base, resumed to the last bit, loaded again."""
import dataclasses, json, os, random, subprocess, sys

import pytest
import torch
from safetensors.torch import load_file

import navira
from navira.models.transformers import TransformersLM
from navira.training.finetuning import _end_of, finetune
from navira.training.runs import read_checkpoint, read_log
from navira.training.settings import FinetuneConfig
from helpers.sample_api import says
from helpers.training import losses, ROOT

WORDS = ('the man', 'opened the door', 'and walked in', 'the house', 'there and then', 'a dog')

@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp('corpus'), random.Random(0)
    for name, n in (('train', 300), ('validation', 80)):
        (folder / f'{name}.txt').write_text('\n'.join(' '.join(rng.choices(WORDS, k=4)) for _ in range(n)))
    return folder

@pytest.fixture(scope='module')
def golden(pytestconfig): return pytestconfig.rootpath / 'tests' / 'golden'

def settings(corpus, model, out, **kw):
    given = dict(lora=4, length=16, head_steps=4, joint_steps=4, batch_size=8, warmup=1, log_every=1, eval_every=4,
                 eval_sequences=16, checkpoint_every=1, precision='fp32', lr=1e-2, head_lr=1e-2)
    return FinetuneConfig(data=str(corpus), model=str(model), out=str(out), **given | kw)

@pytest.fixture(scope='module')
def tuned(corpus, golden, tmp_path_factory):
    out = tmp_path_factory.mktemp('runs') / 'llada'
    return finetune(settings(corpus, golden / 'llada', out), progress=False), out

def test_what_is_written(tuned, golden):
    folder, out = tuned
    assert sorted(p.name for p in folder.iterdir()) == [
        'README.md', 'adapter_config.json', 'adapter_model.safetensors', 'quality.safetensors', 'training.json']
    r = json.loads((folder / 'training.json').read_text())
    assert r['base'] == 'llada' and r['lora'] == 4 and [s['name'] for s in r['stages']] == ['head', 'joint']
    assert 0 < r['quality']['auroc'] < 1 and r['nelbo']['value'] < r['before']['value']
    assert f"{r['quality']['auroc']:.3f}" in (folder / 'README.md').read_text()
    assert {k.split('.')[-2] for k in load_file(folder / 'adapter_model.safetensors')} == {'lora_A', 'lora_B'}

def test_a_checkpoint_holds_what_is_trained_and_no_more(tuned):
    state = read_checkpoint(tuned[1] / 'joint')
    assert state['model'].keys() == state['ema'].keys()
    assert all('lora_' in k or k.startswith('quality.') for k in state['model'])
    head, joint = read_checkpoint(tuned[1] / 'head')['ema'], state['ema']
    moved = {k for k in joint if not torch.equal(head[k], joint[k])}
    assert all(not head[k].any() for k in head if 'lora_B' in k) and any('lora_B' in k for k in moved)

@torch.inference_mode()
def test_it_loads_on_its_base_and_samples(tuned, golden):
    folder, out = tuned
    model, base = navira.load(golden / 'llada', head=folder), navira.load(golden / 'llada')
    assert isinstance(model, TransformersLM) and not [n for n, _ in model.named_parameters() if 'lora' in n]    # merged
    x = torch.full((1, 8), model.mask_id)
    assert (model(x).logits(x == 277) - base(x).logits(x == 277)).nan_to_num().abs().max() > 1e-4
    for name in ('prism', 'navira-piecewise', 'navira-onepass'):
        assert (navira.sample(model, name, 8, length=8, eta=.4, on=0.).tokens != 277).all()
    low = navira.load(golden / 'llada', head=folder, dtype='bfloat16')
    assert (low(x).quality() - model(x).quality()).abs().max() < .1

def test_peft_opens_it_too(tuned, golden):
    from peft import PeftModel
    base = navira.load(golden / 'llada')
    x = torch.full((1, 8), 277)
    ours = navira.load(golden / 'llada', head=tuned[0])(x).h
    net = PeftModel.from_pretrained(base.net, str(tuned[0])).get_base_model()
    torch.testing.assert_close(net.base_model(input_ids=x).last_hidden_state, ours)

def test_a_run_that_was_stopped_goes_on_to_the_last_bit(tuned, corpus, golden, tmp_path):
    cfg = settings(corpus, golden / 'llada', tmp_path / 'run')
    assert finetune(cfg, progress=False, stop=2) == tmp_path / 'run'
    folder = finetune(cfg, progress=False)
    for name in ('adapter_model', 'quality'):
        one, two = (load_file(f / f'{name}.safetensors') for f in (folder, tuned[0]))
        assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)

def test_gradient_checkpointing_changes_no_number(tuned, corpus, golden, tmp_path):
    finetune(settings(corpus, golden / 'llada', tmp_path / 'run', gradient_checkpointing=True), progress=False)
    for stage in ('head', 'joint'):
        logs = (read_log(f / stage / 'log.jsonl') for f in (tuned[1], tmp_path / 'run'))
        a, b = ([r['loss'] for r in log if 'loss' in r] for log in logs)
        assert a == pytest.approx(b, rel=1e-5) and len(a) == 4

@pytest.mark.parametrize('name', ['bert', 'dream', 'modernbert', 'a2d-qwen3'])
def test_other_families(corpus, golden, tmp_path, name):
    folder = finetune(settings(corpus, golden / name, tmp_path / 'run'), progress=False)
    model = navira.load(golden / name, head=folder)
    assert navira.sample(model, 'navira-det', 4, length=8, eta=.4, on=0.).tokens.shape == (1, 8)

def test_the_head_alone(corpus, golden, tmp_path):
    said = []
    folder = finetune(settings(corpus, golden / 'bert', tmp_path / 'run', lora=0), progress=False, tell=said.append)
    assert not (folder / 'adapter_config.json').exists() and any('head alone' in s for s in said)
    model, base, x = navira.load(golden / 'bert', head=folder), navira.load(golden / 'bert'), torch.full((1, 8), 3)
    assert torch.equal(model(x).h, base(x).h) and model(x).quality().abs().max() > 0
    assert finetune(settings(corpus, golden / 'bert', tmp_path / 'run', lora=0), progress=False) == folder

def test_mistakes(tuned, corpus, golden, tmp_path):
    with says(ValueError, 'another base model'): navira.load(golden / 'a2d-llama', head=tuned[0])
    with says(FileNotFoundError, 'quality.safetensors'): navira.load(golden / 'llada', head=tmp_path)
    with says(ValueError, 'head=', "MDLM's"): navira.load(head=tuned[0])
    with says(ValueError, 'lora=4', "MDLM's"):
        finetune(FinetuneConfig(data=str(corpus), out=str(tmp_path / 'x'), lora=4))
    with says(ValueError, 'lora=-1'): FinetuneConfig(data='d', out='o', lora=-1)
    with says(ValueError, 'gradient_checkpointing'): FinetuneConfig(data='d', out='o', gradient_checkpointing='perhaps')

def test_backplays_objective(corpus, golden, tmp_path):
    "The head alone learns; the card names whose objective it was; an adapter is refused."
    cfg = settings(corpus, golden / 'llada', tmp_path, lora=0, objective='backplay', final_sequences=6)
    assert cfg.joint_steps == 0
    folder = finetune(cfg, progress=False)
    r = json.loads((folder / 'training.json').read_text())
    assert r['nelbo']['n'] == r['before']['n'] == 6 and 0 < r['quality']['sequences'] <= 6
    assert sorted(p.name for p in folder.iterdir()) == ['README.md', 'quality.safetensors', 'training.json']
    assert "BackPlay's objective" in (folder / 'README.md').read_text()
    assert load_file(folder / 'quality.safetensors')['linear.weight'].any()
    with says(ValueError, 'lora=4', 'trains the head alone'):
        settings(corpus, golden / 'llada', tmp_path, lora=4, objective='backplay')
    with says(KeyError, "objective 'backplai'", "did you mean 'backplay'"):
        settings(corpus, golden / 'llada', tmp_path, objective='backplai')

def test_self_correction_is_refused(corpus, golden, tmp_path):
    with says(ValueError, "objective='proseco'", 'transformers library', "objective='prism'"):
        finetune(settings(corpus, golden / 'llada', tmp_path / 'run', lora=0, objective='proseco'), progress=False)
    assert not (tmp_path / 'run').exists()

def test_two_processes_follow_one(tuned, corpus, golden, tmp_path):
    "Each has half of a batch: the same losses, and an adapter that is loaded."
    cfg = settings(corpus, golden / 'llada', tmp_path / 'two')
    (tmp_path / 'cfg.json').write_text(json.dumps(dataclasses.asdict(cfg)))
    command = [sys.executable, '-m', 'accelerate.commands.launch', '--multi_gpu', '--num_processes', '2',
               '--num_machines', '1', '--mixed_precision', 'no', '--dynamo_backend', 'no', '--main_process_port',
               str(random.randint(20000, 60000)), '-m', 'navira.cli', 'finetune', str(tmp_path / 'cfg.json')]
    env = os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')
    p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert p.returncode == 0, p.stderr[-3000:]
    for stage in ('head', 'joint'):
        one, two = (losses(out / stage) for out in (tuned[1], tmp_path / 'two'))
        assert one.keys() == two.keys() and len(one) == 4
        for step in one:       # a half is divided by its own number of draws, so the mean of both is nearly that of all
            assert two[step][0] == pytest.approx(one[step][0], rel=.01), (stage, step)
    assert navira.load(golden / 'llada', head=tmp_path / 'two' / 'model').quality is not None

@pytest.mark.parametrize('lora', [0, 4])
def test_the_network_that_is_sampled_has_no_dropout(corpus, golden, tmp_path, monkeypatch, lora):
    "BERT is configured with dropout: a frozen one has none, one that learns has it where it learns."
    seen, hidden = set(), TransformersLM.hidden
    def watched(model, x):
        seen.add((torch.is_grad_enabled(), any(m.training for m in model.net.modules())))
        return hidden(model, x)
    monkeypatch.setattr(TransformersLM, 'hidden', watched)
    cfg = settings(corpus, golden / 'bert', tmp_path / 'run', lora=lora, head_steps=0 if lora else 4, eval_every=2)
    finetune(cfg, progress=False)
    assert seen == {(False, False), (True, bool(lora))}

def test_the_batch_size_holds_for_every_pass(corpus, golden, tmp_path, monkeypatch):
    "Before and after too, where no step is taken: a network that fits in training fits in evaluation."
    rows, hidden = set(), TransformersLM.hidden
    monkeypatch.setattr(TransformersLM, 'hidden', lambda model, x: (rows.add(len(x)), hidden(model, x))[1])
    finetune(settings(corpus, golden / 'llada', tmp_path / 'run', batch_size=2, drafts=1, lora=0), progress=False)
    assert max(rows) == 2

@pytest.mark.parametrize('name, end', [('diffullama', 276), ('dream', 276), ('llada', 276), ('bert', 2)])
def test_documents_end_as_the_tokenizer_says(golden, name, end):
    "Its end, else its separator; without a tokenizer the first of the ends that the model has."
    model = navira.load(golden / name)
    assert _end_of(model) == end
    model.eos_ids = (5, 7)
    assert _end_of(model) == end
    model.text_tokenizer = None
    assert _end_of(model) == 5
    model.eos_ids = ()
    with says(ValueError, 'names no token that ends a text'): _end_of(model)

def test_a_length_that_the_network_cannot_have_is_named(corpus, golden, tmp_path):
    "Of another's network, and of ours"
    for model, kw in ((golden / 'llada', {}), ('embedded', dict(lora=0))):
        with pytest.raises(ValueError, match='length=1000: this network takes at most'):
            finetune(settings(corpus, model, tmp_path / 'out', length=1000, **kw), progress=False)
    assert not (tmp_path / 'out').exists()
