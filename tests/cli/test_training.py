"""`navira train`, `finetune`, `adapt` and `critic`: settings, help, and a run that is stopped."""
import json
import re
import shlex
import signal

import pytest

from navira.training.loop import Trainer
from helpers.cli import foreign, refuses, said  # noqa: F401
from helpers.training import home, trained  # noqa: F401

FEW = ['dim=8', 'blocks=1', 'heads=2', 'cond_dim=4', 'vocab_size=300', 'precision=fp32', 'warmup=0',
       'eval_sequences=2']
TINY = [arg for setting in FEW for arg in ('--set', setting)]

def train(data, out, *more): return ['train', '--data', f'{{bad}}/{data}', '--out',
                                     f'{{bad}}/{out}', *more]

MISTAKES = {
    'unknown setting': (train('latin.txt', 'run', '--set', 'token=5'), "did you mean 'tokens'?"),
    'settings are a list': (['train', '{bad}/list.json'], 'expected settings by name'),
    'nothing to train': (
        ['finetune', '--data', '{bad}/words.txt', '--out', '{bad}/run', '--head-steps', '0',
         '--joint-steps', '0'],
        'head_steps=0 and joint_steps=0'),
    'no network given': (['adapt', '--data', 'd', '--out', '{bad}/run'],
                         'missing --model'),
    'a folder for a model': (['adapt', '{bad}'], '--model a model'),
    'a text for settings': (['train', '{bad}/words.txt'], '--data names a corpus'),
    'a reserved name': (train('words.txt', 'run', '--set', 'kind=x'), "setting 'kind'"),
}

@pytest.mark.parametrize('case', MISTAKES)
def test_a_mistake_is_a_sentence(case, foreign, refuses):
    args, sentence = MISTAKES[case]
    refuses(sentence, *[a.format(bad=foreign) for a in args])


def test_a_run_is_stopped_and_goes_on(foreign, tmp_path, capsys, monkeypatch):
    """Ctrl-C prints the command that goes on; typed as it stands, it does. A number may be written
    as .002"""
    real = Trainer.train_step
    def pressed(tr, *a):
        if tr.step == 6: signal.raise_signal(signal.SIGINT)
        return real(tr, *a)
    args = ['train', '--data', str(foreign / 'words.txt'), '--out', str(tmp_path / 'my run'),
            '--length', '4',
            '--batch-size', '4', *TINY, '--set', 'lr=.002', '--set', 'epochs=1']
    with monkeypatch.context() as m:
        m.setattr(Trainer, 'train_step', pressed)
        code, printed = said(capsys, *args)
    assert code == 130
    command = re.search(r'step \d+ of \d+ is saved. To go on: navira (.*)', printed.err)[1]
    code, printed = said(capsys, *shlex.split(command))
    assert code in (0, None) and f"model: {tmp_path / 'my run' / 'model'}" in printed.out, printed
    assert json.loads((tmp_path / 'my run' / 'run.json').read_text())['lr'] == .002

@pytest.mark.parametrize('lora', [None, 2], ids=["of MDLM's layout", 'an adapter'])
def test_a_fine_tuned_model_says_how_it_is_used(lora, home, trained, tmp_path, pytestconfig,
                                                capsys):
    "The command that is printed runs as it stands."
    golden = pytestconfig.rootpath / 'tests' / 'golden' / 'llada'
    base = trained / 'model' if lora is None else golden
    more = [] if lora is None else ['--lora', str(lora), '--set', 'length=16']
    args = ['finetune', '--data', str(home), '--model', str(base), '--out',
            str(tmp_path / 'my run'), *more,
            '--head-steps', '1', '--joint-steps', '1', '--batch-size', '4', '--set',
            'eval_sequences=4',
            '--set', 'final_sequences=4']
    code, printed = said(capsys, *args)
    assert code in (0, None), printed
    command = shlex.split(re.search('use it: navira (.*)', printed.out)[1])
    assert ('--head' in command) == (lora is not None)
    code, printed = said(capsys, *command, '--budget', '4', '--length', '8')
    assert code in (0, None) and '--- remdm-cap:top_p=.5, ' in printed.out, printed
