"""`navira train`, `finetune`, `adapt` and `critic`: settings, help, and a run that is stopped."""
import json
import re
import shlex
import signal

import pytest

from navira.training.loop import Trainer
from helpers.cli import refuses, said  # noqa: F401
from helpers.training import home, trained  # noqa: F401

TINY = ('--dim 8 --blocks 1 --heads 2 --cond-dim 4 --vocab-size 300 --length 4 --batch-size 4 '
        '--warmup 0 --eval-sequences 2 --precision fp32 --set lr=.002 --set epochs=1').split()

@pytest.mark.parametrize('typed, sentence', [
    ('train --data words.txt --out run --set token=5', "did you mean 'tokens'?"),
    ('train --data words.txt --out run --set kind=x', "setting 'kind'"),
    ('finetune --data words.txt --out run --head-steps 0 --joint-steps 0', 'joint_steps=0'),
    ('finetune --data words.txt --out run --objective cdlm --set replaced=2', 'replaced=2'),
    ('adapt --data d --out run', 'missing --model'),
    ('adapt .', '--model a model'), ('train words.txt', '--data names a corpus')])
def test_a_mistake_is_a_sentence(typed, sentence, refuses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'words.txt').write_text('the dog sees the cat. ' * 40)
    refuses(sentence, *typed.split())

def test_a_run_is_stopped_and_goes_on(tmp_path, capsys, monkeypatch):
    "Ctrl-C prints the command that goes on; typed as it stands, it does."
    real = Trainer.train_step
    def pressed(tr, *a):
        if tr.step == 6: signal.raise_signal(signal.SIGINT)
        return real(tr, *a)
    (tmp_path / 'words.txt').write_text('the dog sees the cat, and the owl sleeps.\n' * 40)
    out = tmp_path / 'my run'
    with monkeypatch.context() as m:
        m.setattr(Trainer, 'train_step', pressed)
        code, printed = said(capsys, 'train', '--data', tmp_path / 'words.txt', '--out', out, *TINY)
    assert code == 130
    command = re.search(r'step \d+ of \d+ is saved. To go on: navira (.*)', printed.err)[1]
    code, printed = said(capsys, *shlex.split(command))
    assert not code and f"model: {out / 'model'}" in printed.out, printed
    assert json.loads((out / 'run.json').read_text())['lr'] == .002

@pytest.mark.parametrize('lora', [0, 2], ids=["of MDLM's layout", 'an adapter'])
def test_a_fine_tuned_model_says_how_it_is_used(lora, home, trained, tmp_path, pytestconfig,
                                                capsys):
    "The command that is printed runs as it stands."
    golden = pytestconfig.rootpath / 'tests' / 'golden' / 'llada'
    few = ('--length 16 --head-steps 1 --joint-steps 1 --batch-size 4 --eval-sequences 4 '
           f'--final-sequences 4 --set fill=3 --lora {lora}')
    code, printed = said(capsys, 'finetune', '--data', home, '--out', tmp_path / 'my run',
                         '--model', golden if lora else trained / 'model', *few.split())
    assert not code, printed
    command = shlex.split(re.search('use it: navira (.*)', printed.out)[1])
    assert ('--head' in command) == bool(lora)
    code, printed = said(capsys, *command, '--budget', '4', '--length', '8')
    assert not code and '--- remdm-cap:top_p=.5, ' in printed.out, printed
