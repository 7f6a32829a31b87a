"""What a run is asked to do, checked before it begins."""
import dataclasses, json, random, re, sys

import pytest
from hypothesis import given, strategies as st

from navira.models.load import load
from navira.training.critic import CriticConfig
from navira.training.loop import cosine
from navira.training.settings import FinetuneConfig, TrainConfig, precision, read_config
from helpers.training import ROOT, home, launch, losses, one_thread, small, trained  # noqa: F401

# settings

@pytest.mark.parametrize(
    'text, error, match', [
        ('{"data": "d", "out": "o", "lrr": 1}', KeyError, "setting 'lrr': did you mean 'lr'"),
        ('{"data": "d"}', ValueError, 'out: not given'),
        ('{"data": "d", "out": "o", "lr": "fast"}', ValueError, "lr='fast': expected float"),
        ('{"data": "d", "out": "o", "betas": [0.9]}', ValueError, 'betas'),
        ('{"data": "d", "out": "o", "precision": "bf6"}', KeyError, "did you mean 'bf16'"),
        ('{"data":', ValueError, 'c.json'),
        ('{"data": "d", "out": "o", "ema": 1.5}', ValueError, 'ema=1.5: expected 0 to 1'),
        ('{"data": "d", "out": "o", "batch_size": 2.5}', ValueError, 'batch_size=2.5: expected int'),
        ('{"data": "d", "out": "o", "tokens": true}', ValueError, 'tokens=True'),
        ('{"data": "d", "out": "o", "clip": 0}', ValueError, r'clip=0\.0: expected more than 0$'),
        ('{"data": "d", "out": "o", "betas": [true, 0.9]}', ValueError, r'betas=\[True, 0\.9\]: expected two numbers'),
        ('{"data": "d", "out": "o", "betas": [0, 1]}', ValueError, r'betas=\[0, 1\]: expected two numbers in \[0, 1\)'),
    ])
def test_bad_settings(tmp_path, text, error, match):
    (tmp_path / 'c.json').write_text(text)
    with pytest.raises(error, match=match): read_config(TrainConfig, tmp_path / 'c.json')

def test_settings_file(tmp_path):
    (tmp_path / 'run.toml').write_text('data = "d"\nout = "o"\nfill = 4')
    assert read_config(FinetuneConfig, tmp_path / 'run.toml', drafts=3, fill=None) == FinetuneConfig(
        data='d', out='o', fill=4, drafts=3)
    with pytest.raises(FileNotFoundError, match='did you mean .*run.toml'):
        read_config(TrainConfig, tmp_path / 'runs.toml')

def test_whole_numbers_do_for_betas():
    betas = TrainConfig(data='d', out='o', betas=[0, .9]).betas
    assert betas == (0., .9) and all(type(b) is float for b in betas)

def test_two_processes(home, tmp_path, trained):
    "Two processes on halves of each batch follow the run of one process; both stages of fine-tuning run too."
    cfg = small(home, tmp_path / 'two', steps=30)
    tune = FinetuneConfig(
        data=str(home), out=str(tmp_path / 'tuned'), head_steps=3, joint_steps=3, batch_size=8, log_every=1,
        eval_sequences=16, precision='fp32')
    p = launch(
        cfg,
        tune,
        tmp_path=tmp_path,
        prefix=(
            sys.executable, '-m', 'accelerate.commands.launch', '--multi_gpu', '--num_processes', '2', '--num_machines',
            '1', '--mixed_precision', 'no', '--dynamo_backend', 'no', '--main_process_port',
            str(random.randint(20000, 60000))),
    )
    out, _ = p.communicate(timeout=240)
    assert p.returncode == 0, out.decode()[-3000:]
    # `--cpu` would start one, and say nothing
    assert sorted(re.findall(r'process (\d) of (\d)', out.decode())) == [('0', '2'), ('1', '2')]
    a, b = losses(tmp_path / 'two'), losses(trained)
    assert len(a) == 30 and all(abs(a[s][0] - b[s][0]) < 1e-3 * b[s][0] for s in range(1, 31)), [
        (a[s], b[s]) for s in a]
    assert (
        len(losses(tmp_path / 'tuned' / 'head')) == len(losses(tmp_path / 'tuned' / 'joint')) == 3
        and load(tmp_path / 'tuned' / 'model').quality is not None)

def test_precision_is_explicit_or_detected():
    assert (
        precision('no') == 'fp32' == precision('fp32') and precision('bf16') == 'bf16'
        and precision('auto') in ('fp32', 'bf16'))

@given(
    st.floats(1e-12, 1e12).flatmap(
        lambda x: st.sampled_from([repr(x), f'{x:e}', f'{x:+.3f}', f' {x} ', repr(x).removeprefix('0')]))
)
def test_a_number_is_what_float_reads(text):
    if float(text) >= 0: assert TrainConfig(data='d', out='o', lr=text).lr == float(text)

def test_numbers_as_text_are_checked_too():
    c = TrainConfig(data='d', out='o', lr='.001', tokens='76_000_000', batch_size='1e2', betas=['.9', '.95'])
    assert (c.lr, c.tokens, c.batch_size, c.betas) == (.001, 76_000_000, 100, (.9, .95)) and type(c.batch_size) is int
    for bad in (
        dict(lr='inf'), dict(lr='nan'), dict(tokens='1.5'), dict(batch_size='-3'), dict(lr='1e-3x'),
        dict(tokens=10**400)):
        with pytest.raises(ValueError, match=f'^{next(iter(bad))}='): TrainConfig(data='d', out='o', **bad)

def test_fp32_is_called_so():
    # the old word, in files of old runs
    assert TrainConfig(data='d', out='o', precision='no') == TrainConfig(data='d', out='o', precision='fp32')
    with pytest.raises(KeyError, match="did you mean 'fp32'"): TrainConfig(data='d', out='o', precision='fp23')

@pytest.mark.parametrize('text', ['[1, 2]', '5', '"lr"', 'null'])
def test_a_settings_file_is_a_table(tmp_path, text):
    (tmp_path / 'c.json').write_text(text)
    with pytest.raises(ValueError, match=r'c\.json: holds .*expected settings by name'):
        read_config(TrainConfig, tmp_path / 'c.json')

def test_nothing_to_train():
    with pytest.raises(ValueError, match='head_steps=0 and joint_steps=0'):
        FinetuneConfig(data='d', out='o', head_steps=0, joint_steps=0)

def test_an_objective_of_one_stage():
    kw = dict(data='d', out='o', objective='proseco')
    cfg = FinetuneConfig(**kw)
    assert (cfg.head_steps, cfg.joint_steps, cfg.correction_weight, cfg.t_min) == (0, 500, 1., .1)
    assert not cfg.fill_all and not cfg.mistakes_first
    for bad, match in (
        (dict(joint_steps=0), "joint_steps=0: objective='proseco' has no other stage; expected at least 1"),
        (dict(lora=4), "lora=4: objective='proseco' trains the network, and no adapter; expected 0"),
        (dict(t_min=0), r't_min=0\.0: expected at least 0\.001|t_min=0\.0: expected 0\.001 to 0\.999'),
        (dict(correction_weight=-1), 'correction_weight=-1'), (dict(fill_all='perhaps'), "fill_all='perhaps'")):
        with pytest.raises(ValueError, match=match): FinetuneConfig(**kw | bad)
    with pytest.raises(KeyError, match="objective 'prosecco': did you mean 'proseco'"):
        FinetuneConfig(**kw | dict(objective='prosecco'))
    assert FinetuneConfig(data='d', out='o', objective='backplay').joint_steps == 0

@pytest.mark.parametrize('name, data, model', [('text', 'classics', None), ('sudoku', 'sudoku', 'sudoku')])
def test_the_settings_for_self_correction_in_benchmarks(name, data, model):
    cfg = read_config(FinetuneConfig, ROOT / 'benchmarks' / f'proseco-{name}.toml')
    assert cfg.objective == 'proseco' and cfg.model == model and data in cfg.data and cfg.joint_steps

# the embedded model

def test_the_recipe_of_the_embedded_model_can_be_given():
    "What its records say, as settings, and as the commands in notebook 10 give them."
    stages = [
        s for name in ('training', 'critic-training')
        for s in json.loads((ROOT / 'navira' / 'weights' / f'{name}.json').read_text())['stages']]
    base = dict(data='classics', out='run', precision='fp32')
    said = dict(
        pretrain=TrainConfig(tokens=76_000_000, **base),
        head=FinetuneConfig(head_steps=480, joint_steps=320, warmup=50, ema=0.99, **base),
        critic=CriticConfig(batch_size=32, **base))
    for s in stages:
        kind = dict(pretrain=TrainConfig, critic=CriticConfig).get(s['name'], FinetuneConfig)
        cfg = kind(**s['recipe'] | dict(data='classics', out='run'))
        if s['name'] in said:
            differ = {
                f.name for f in dataclasses.fields(cfg) if getattr(cfg, f.name) != getattr(said[s['name']], f.name)}
            # lr: the record's is the stage's, which is `head_lr`
            assert differ <= {'checkpoint_every', 'eval_every', 'lr'}, differ
    assert said['pretrain'].steps == 9277 and [cosine(i, 9277, 300, 0.05) for i in (0, 299)] == pytest.approx(
        [1 / 300, 1.0], abs=0.01)
