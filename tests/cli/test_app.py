"""The program as a user meets it: exit codes, own policies, help, and whatever is typed."""
import io
import subprocess
import sys

import pytest
import typer
from hypothesis import given, HealthCheck, settings, strategies as st

from helpers.cli import net, refuses, run, said  # noqa: F401
from toys import small_lm

OWN = '''
from dataclasses import replace
from beside import NAME
from navira import register
from navira.core import TopK
from navira.prism import binomial, prism

def score(st, p, where):
    {body}

@register(NAME)
def mine(
    eta: float = .2, # how often
): return replace(prism(eta), remask=TopK(score, binomial(.5)))
'''

@pytest.fixture
def own(tmp_path, monkeypatch):
    "A file with a policy of one's own and its neighbour; the policy is forgotten afterwards"
    from navira.sampler.registry import _about, _registry, policies
    policies()      # those of the package stay
    for registry in (_registry, _about):
        monkeypatch.setitem(registry, 'mine', None)     # put back as it was
        del registry['mine']
    (tmp_path / 'beside.py').write_text('NAME = "mine"\n')
    (tmp_path / 'json.py').write_text(OWN.format(body='return where.double()'))     # as a library
    return tmp_path / 'json.py'

# --- whatever is typed ----------------------------------------------------------------------------

values = st.text(max_size=6) | st.sampled_from(
    ['', '-1', '0', '1', '2', '4', '12', '9' * 20, 'nan', '[1', 'caf\udce9', '\x1b[31m', 'none',
     'no/such', 'r.html', '/proc/r.html', 'bad.py', 'prism:eta=.3', 'navira:tau=.1', 'mdlm',
     'navria', 'prism:eta', 'prism:eta=[1]', 'navira:tau=warm', 'prism:n_remask=' + '1' * 400])
names = ('policy budget samples length replay import out seed max-new-tokens block-length eos '
         'prompts device dtype model mask-id tokens steps budgets task').split()
flags = st.sampled_from([['--json'], ['--chat'], ['--aligned'], ['-h'], []])
commands = st.sampled_from(['generate', 'fill', 'solve', 'compare', 'info', 'sample', 'report'])

@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=commands, first=values | st.just('a ___.'), flag=flags,
       more=st.lists(st.tuples(st.sampled_from(names), values), max_size=4))
def test_whatever_is_typed_ends_in_a_result_or_in_a_sentence(
        command, first, more, flag, tmp_path, monkeypatch, capsys):
    import navira as package
    real, tiny = package.load, small_lm(seed=3)
    def load(source=None, *a, **how): return real(source, *a, **how) if source else tiny
    monkeypatch.setattr(package, 'load', load, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'bad.py').write_text('1 / 0\n')
    pairs = [part for name, v in more for part in (f'--{name}', v)]
    code, printed = said(capsys, command, *[first] * bool(first), *flag, *pairs)
    assert code in (0, 1, 2) and 'Traceback' not in printed.err
    assert '\x1b' not in printed.out  # a text cannot control the terminal
    assert code != 2 or printed.err.strip()

def test_what_the_terminal_lacks_is_spelt_out(run, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), 'ascii')
    monkeypatch.setattr(sys, 'stdout', out)
    run(*'generate 日本 --max-new-tokens 2 --budget 2'.split())
    out.flush()
    assert rb'\u65e5\u672c' in out.buffer.getvalue()

@pytest.mark.parametrize('typed, expected', [
    ('generate --steps 16', '--budget counts forward passes'),
    ('generate --gen-length 16', 'expected --max-new-tokens'),
    ('fill a___ --temperature .5', 'as in --policy prism:top_p=.5'),
    ('compare --policies prism', 'policies are arguments'),
    ('report --store x', 'the store is an argument'), ('info --model x', 'navira info FOLDER'),
    ('generate --import no.py', 'no.py: not found'),
    ('generate -p prism:name=x', "hyper-parameter 'name'"),
    ('sweep small --set source=x', "setting 'source'")])
def test_words_of_other_programs_lead_to_ours(typed, expected, capsys):
    code, printed = said(capsys, *typed.split())
    assert code == 2 and expected in ' '.join(printed.err.split())

@pytest.mark.parametrize('typed', [
    'generate --prompts=~/no.txt', 'solve ~/no.txt', 'info --import=~/no.py',
    'train --data=~/no.txt --out=~/out'])
def test_a_path_may_begin_with_the_home_folder(typed, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    code, printed = said(capsys, *typed.split())
    assert code == 2 and f'{tmp_path}/no' in printed.err.replace('\n', ''), printed

@pytest.mark.parametrize('error', [MemoryError(), RuntimeError('cannot allocate')], ids=repr)
def test_memory_that_runs_out_is_a_sentence_and_a_bug_is_a_traceback(error, monkeypatch, refuses,
                                                                     capsys):
    import navira as package
    def fails(error):
        def load(*_, **how): raise error
        monkeypatch.setattr(package, 'load', load, raising=False)
    fails(error)
    refuses('not enough memory', 'generate')
    fails(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError): said(capsys, 'generate')

# --- policies of one's own ------------------------------------------------------------------------

def test_an_own_file_runs_in_a_command(own, run):
    how = '--policy', 'mine:eta=.5', '--budget', 4, '--length', 16
    assert run('generate', '--import', own, *how)
    assert 'eta' in run('info', 'mine')

@pytest.mark.parametrize('text, sentence', [
    ('import navira\n', 'it registers no policy'),
    ('import sys\nsys.exit(0)\n', 'ends the program with SystemExit(0)'),
    ('import navira\n\n1 / 0\n', 'line 3: ZeroDivisionError: division by zero'),
    (OWN.format(body='1 / 0'), 'line 9: ZeroDivisionError'),
    (OWN.format(body="raise ValueError('no width')"), 'line 9: ValueError: no width')])
def test_an_own_file_that_fails_is_named_with_its_line(text, sentence, own, refuses):
    own.write_text(text)
    policy = ['-p', 'mine'] * ('mine' in text)
    said = refuses(sentence, 'generate', *policy, '--budget', 4, '--length', 8, '--import', own)
    assert str(own) in said

# --- help -----------------------------------------------------------------------------------------

def test_version_and_help(run):
    import navira as package
    from navira.cli.app import app
    assert run('--version').strip() == f'navira {package.__version__}'
    shown = ' '.join(run('--help').split())
    commands = typer.main.get_command(app).commands
    assert all(f'{k} {v.get_short_help_str(200)}' in shown for k, v in commands.items())
    assert run('generate', '-h') == run('generate', '--help')

def test_help_needs_no_torch():
    code = ("import sys; from navira.cli import main\ntry: main(['train', '--help'])\n"
            "except SystemExit: pass\nassert 'torch' not in sys.modules")
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
