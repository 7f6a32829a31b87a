"""The command line as a user meets it: a process of its own, exit codes, one line for a mistake, files that are written."""
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from navira.denoiser import save
from toys import small_lm


def navira(*args, **env):
    return subprocess.run([sys.executable, '-m', 'navira.cli', *args], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                          env={**os.environ, 'HF_HUB_OFFLINE': '1', 'TRANSFORMERS_OFFLINE': '1', 'COLUMNS': '100', **env})


@pytest.fixture(scope='module')
def foreign(tmp_path_factory):
    d = tmp_path_factory.mktemp('bad')
    (d / 'broken.safetensors').write_bytes(b'\x10\0\0\0\0\0\0\0{"not": "really')
    (d / 'foreign.ckpt').write_bytes(b'this is no checkpoint')
    (d / 'empty').mkdir()
    (d / 'nothing.txt').write_text('')
    (d / 'words.txt').write_text('the dog sees the cat, and the owl sleeps.\n' * 40)
    (d / 'list.json').write_text('[1, 2]')
    (d / 'others').mkdir()
    (d / 'others' / 'tokenizer.json').write_text('{}')
    (d / 'latin.txt').write_bytes('caf\xe9 '.encode('latin-1') * 50)
    return d


TINY = [a for s in ('dim=8', 'blocks=1', 'heads=2', 'cond_dim=4', 'vocab_size=300', 'precision=fp32', 'warmup=0', 'eval_sequences=2') for a in ('--set', s)]
MISTAKES = {
    'unknown policy': (['generate', '--policy', 'navria'], "did you mean 'navira'?"),
    'unknown policy to compare': (['compare', '--policies', 'prism,navira-dett'], "did you mean 'navira-det'?"),
    'unknown sweep to estimate': (['info', '--bench', '--sweep', 'smal'], "did you mean 'small'?"),
    'unknown hyper-parameter': (['generate', '--policy', 'navira', '--set', 'tao=1'], "did you mean 'tau'?"),
    'budget too small': (['generate', '--policy', 'navira', '--budget', '1'], 'budget=1'),
    'one budget of many too small': (['compare', '--budgets', '16,1'], 'budget=1'),
    'budget is no number': (['compare', '--budgets', '16,many'], '16,many'),
    'no samples': (['generate', '-n', '0'], 'n=0'),
    'no samples to compare': (['compare', '-n', '-3'], 'n=-3'),
    'prompt too long': (['generate', '--prompt', 'word ' * 400], 'longer than the 128'),
    'tau negative': (['generate', '--policy', 'navira', '--set', 'tau=-0.5'], 'tau=-0.5'),
    'tau not finite': (['generate', '--policy', 'navira', '--set', 'tau=NaN'], 'tau=nan'),
    'tau no number': (['generate', '--policy', 'navira', '--set', 'tau=warm'], "tau='warm': expected a number"),
    'a list for a number': (['generate', '--set', 'eta=[1]'], 'eta=[1]: expected a number'),
    'nothing for a number': (['generate', '--set', 'p=null'], 'p=None: expected a number'),
    'a truth for a number': (['generate', '--set', 'on=true'], 'on=True: expected a number'),
    'a number for a text': (['generate', '--policy', 'navira', '--set', 'score=1'], 'score=1: expected text'),
    'text for a count': (['generate', '--set', 'n_remask=two'], "n_remask='two'"),
    'show negative': (['compare', '--show', '-1'], 'show=-1'),
    'taus unordered': (['generate', '--set', 'tau_min=0.4', '--set', 'tau_mid=0.1'], 'tau_min=0.4 > tau_mid=0.1'),
    'set without a value': (['generate', '--set', 'tau'], 'name=value'),
    'length too large': (['generate', '--length', '4096'], 'length=4096'),
    'missing checkpoint': (['generate', '--model', 'no/such/model/folder'], 'not found'),
    'broken checkpoint': (['generate', '--model', '{bad}/broken.safetensors'], 'not a readable safetensors'),
    'foreign checkpoint': (['info', '{bad}/foreign.ckpt'], 'not a zip archive'),
    'missing corpus': (['train', '--data', '{bad}/nothin.txt', '--out', '{bad}/run'], 'nothing.txt'),
    'empty corpus': (['train', '--data', '{bad}/nothing.txt', '--out', '{bad}/run'], 'empty'),
    'corpus is not UTF-8': (['train', '--data', '{bad}/latin.txt', '--out', '{bad}/run'], 'not UTF-8 at byte'),
    'unknown setting': (['train', '--data', '{bad}/latin.txt', '--out', '{bad}/run', '--set', 'token=5'], "did you mean 'tokens'?"),
    'settings are a list': (['train', '{bad}/list.json'], 'expected settings by name'),
    'nothing to train': (['finetune', '--data', '{bad}/words.txt', '--out', '{bad}/run', '--head-steps', '0', '--joint-steps', '0'], 'head_steps=0 and joint_steps=0'),
    'a rate that ruins the weights': (['train', '--data', '{bad}/words.txt', '--out', '{bad}/ruined', '--tokens', '64', '--length', '4', '--batch-size', '4', *TINY, '--set', 'lr=1e300'], 'no checkpoint was written. Expected a lower learning rate (lr=1e+300)'),
    'a size that no machine has': (['train', '--data', '{bad}/words.txt', '--out', '{bad}/run', '--set', 'dim=1e12'], 'dim=1000000000000: expected 1 to 65536'),
    'a folder with files of others': (['train', '--data', '{bad}/words.txt', '--out', '{bad}/others'], 'holds tokenizer.json'),
    'no data given': (['finetune', '--out', '{bad}/run'], 'data: not given'),
    'output cannot be written': (['compare', '--out', '{bad}/nothing.txt/demo'], 'cannot write to'),
    'replay cannot be written': (['generate', '--replay', '{bad}/nothing.txt/run.html'], 'cannot write to'),
    'unknown reference': (['compare', '--budgets', '2', '-n', '1', '--reference', 'smolm2', '--out', '{bad}/out'], "did you mean 'smollm2'?"),
}


@pytest.mark.parametrize('case', MISTAKES)
def test_mistake(case, foreign, capsys, monkeypatch):
    "One line that names the value, exit code 2, no traceback."
    from navira.cli import main
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    args, expected = MISTAKES[case]
    with pytest.raises(SystemExit) as e: main([a.format(bad=foreign) for a in args])
    printed = capsys.readouterr()
    assert e.value.code == 2, printed
    assert expected in printed.err, printed.err
    assert 'Traceback' not in printed.err + printed.out and len(printed.err.strip().splitlines()) == 1, printed.err


def test_mistake_in_a_process():
    "The same through the real program."
    r = navira('generate', '--policy', 'navria')
    assert (r.returncode, r.stdout) == (2, '') and r.stderr.strip() == "navira: policy 'navria': did you mean 'navira'?"


def test_generate(tmp_path):
    "Prompt kept, JSON lines, the same text for the same seed, a replay."
    args = ['generate', '--prompt', 'It was a dark night', '--policy', 'navira-sigmoid', '--budget', '8', '-n', '2', '--seed', '5', '--json']
    a, b = navira(*args), navira(*args, '--replay', str(tmp_path / 'new' / 'run.html'))
    assert a.returncode == 0 and a.stdout == b.stdout, a.stderr + b.stderr
    rows = [json.loads(l) for l in a.stdout.splitlines()]
    assert len(rows) == 2 and all(r['text'].startswith('It was a dark night') and r['steps'] == 4 and r['n_forward'] <= 8 for r in rows)
    assert rows[0]['tokens'] != rows[1]['tokens']
    assert '<html' in (tmp_path / 'new' / 'run.html').read_text()


def test_infill():
    r = navira('generate', '--prompt', 'He said<|mask|><|mask|><|mask|> and left.', '--length', '16', '--budget', '6')
    assert r.returncode == 0 and 'He said' in r.stdout and ' and left.' in r.stdout and '<|mask|>' not in r.stdout, r.stdout + r.stderr


def test_compare_without_reference(tmp_path):
    r = navira('compare', '--policies', 'all', '--budgets', '4', '-n', '2', '--reference', 'none', '--out', str(tmp_path / 'out'), '--show', '1')
    assert r.returncode == 0, r.stderr
    cells = json.loads((tmp_path / 'out' / 'compare.json').read_text())['cells']
    from navira import policies
    assert [c['policy'] for c in cells] == list(policies())
    assert all((c['n_forward'] <= c['budget'] or not c['matched']) and len(c['texts']) == 2 and '<|mask|>' not in ''.join(c['texts']) for c in cells)
    assert (tmp_path / 'out' / 'replay.html').exists()


def test_all_means_all_that_the_model_can_run(tmp_path):
    "A model without a head and with another vocabulary: no PRISM, no embedded critic"
    lm = small_lm(quality_blocks=None)
    lm.tokenizer = Tokenizer(WordLevel({f'w{i}': i for i in range(10)} | {'<|mask|>': 10}, unk_token='w0'))
    save(lm, tmp_path / 'm')
    args = ['compare', '--model', str(tmp_path / 'm'), '--budgets', '2', '-n', '1', '--reference', 'none', '--out', str(tmp_path / 'out'), '--policies']
    r = navira(*args, 'all')
    assert r.returncode == 0, r.stderr
    ran = {c['policy'] for c in json.loads((tmp_path / 'out' / 'compare.json').read_text())['cells']}
    assert {'backbone', 'mdlm', 'remdm-cap'} <= ran and not {'prism', 'navira', 'token-critic'} & ran
    assert 'left out: prism: ' in r.stderr and "left out: token-critic: the critic's vocabulary" in r.stderr
    r = navira(*args, 'mdlm,token-critic')
    assert r.returncode == 2 and "the critic's vocabulary" in r.stderr


def test_version_and_help():
    import navira as package
    assert navira('--version').stdout.strip() == f'navira {package.__version__}'
    assert all(w in navira('--help').stdout for w in ('generate', 'compare', 'train', 'finetune', 'critic', 'info'))


def said(capsys, *args):
    "What a command prints, and its exit code: in this process."
    from navira.cli import app
    try: app(list(args))
    except SystemExit as e: return e.code, capsys.readouterr()


@pytest.mark.parametrize('command, config', [('train', 'TrainConfig'), ('finetune', 'FinetuneConfig'), ('critic', 'CriticConfig')])
def test_help_shows_the_defaults(command, config, capsys):
    "of every setting, as they are"
    import dataclasses
    from navira import training
    code, printed = said(capsys, command, '--help')
    shown = dict(re.findall(r'^ *(\w+)=(\S+|\[.*?\])  ', printed.out, re.M))
    own = {f.name: f.default for f in dataclasses.fields(getattr(training, config)) if f.default not in (None, dataclasses.MISSING)}
    assert code == 0 and shown.keys() == own.keys()
    assert {k: training.typed(k, json.loads(v) if v[0] == '[' else v, type(own[k]).__name__) for k, v in shown.items()} == own
    assert f'[default: ({own["batch_size"]})]' in ' '.join(printed.out.split())


def test_a_run_is_stopped_and_goes_on(foreign, tmp_path, capsys, monkeypatch):
    "Ctrl-C prints the command that goes on; typed as it stands, it does. A number may be written as .002"
    from navira import training
    real = training.train_step
    def pressed(tr, *a):
        if tr.step == 6: signal.raise_signal(signal.SIGINT)
        return real(tr, *a)
    monkeypatch.setattr(training, 'train_step', pressed)
    code, printed = said(capsys, 'train', '--data', str(foreign / 'words.txt'), '--out', str(tmp_path / 'my run'), '--length', '4', '--batch-size', '4', *TINY, '--set', 'lr=.002', '--set', 'epochs=1')
    assert code == 130 and 'times the text, in about' in printed.err
    command = re.search(r'step 7 of \d+ is saved. To go on: navira (.*)', printed.err)[1]
    monkeypatch.setattr(training, 'train_step', real)
    code, printed = said(capsys, *shlex.split(command))
    assert code in (0, None) and f'model: {tmp_path / "my run" / "model"}' in printed.out, printed
    assert json.loads((tmp_path / 'my run' / 'run.json').read_text())['lr'] == .002


def test_info():
    r = navira('info')
    assert r.returncode == 0 and 'navira-piecewise' in r.stdout and 'quality head' in r.stdout


def test_version_needs_no_torch():
    code = "import sys, navira.cli as c\ntry: c.app(['--version'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize('words, found', [
    (['ge'], {'generate'}), (['generate', '--pol'], {'--policy'}), (['sweep', '--dr'], {'--dry-run'}),
    (['generate', '--policy', 'navira-q'], {'navira-quadratic'}), (['compare', '--policies', 'prism,remdm-s'], {'prism,remdm-switch'}),
], ids=' '.join)
def test_a_shell_completes(words, found):
    "What bash asks, as `navira --install-completion` has it ask"
    said = subprocess.run([sys.executable, '-c', "import sys; sys.argv = ['navira']; from navira.cli import main; main()"], capture_output=True, text=True,
                          env={**os.environ, '_NAVIRA_COMPLETE': 'complete_bash', 'COMP_WORDS': ' '.join(['navira', *words]), 'COMP_CWORD': str(len(words))})
    assert set(said.stdout.split()) == found, said.stderr


def test_completion_knows_every_policy():
    "and does not import torch for it"
    code = "from navira.cli import complete; import sys; found = complete(''); assert 'torch' not in sys.modules; import navira.onepass; from navira.sampling import policies; assert sorted(found) == sorted(policies())"
    said = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_completion_is_shown_for_a_shell():
    said = subprocess.run([sys.executable, '-c', "import sys; sys.argv = ['navira', '--show-completion', 'bash']; from navira.cli import main; main()"], capture_output=True, text=True, env={**os.environ, '_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION': '1'})
    assert said.returncode == 0 and '_NAVIRA_COMPLETE=complete_bash' in said.stdout
