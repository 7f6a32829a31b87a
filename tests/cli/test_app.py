"""The program as a user meets it: exit codes, own policies, help, and whatever is typed."""

import subprocess, sys
from dataclasses import fields

import pytest
import typer
from hypothesis import given, HealthCheck, settings, strategies as st

from helpers.cli import navira, net, refuses, run, said  # noqa: F401
from toys import small_lm

OWN = """
from dataclasses import replace
from navira import register
from navira.core import TopK
from navira.prism import binomial, prism

def score(st, p, where):
    {body}

@register('mine')
def mine(
    eta: float = .2, # how often
): return replace(prism(eta), remask=TopK(score, binomial(.5)))
"""


@pytest.fixture
def own(tmp_path):
    "A file with a policy of one's own, which is forgotten afterwards"
    import navira.peers  # noqa: F401 (its policies stay)
    from navira.registry import _about, _registry

    before = dict(_registry), dict(_about)
    (tmp_path / 'json.py').write_text(
        OWN.format(body='return where.double()')
    )  # called as a library is
    yield tmp_path / 'json.py'
    for registry, kept in zip((_registry, _about), before):
        registry.clear()
        registry.update(kept)


# --- whatever is typed ----------------------------------------------------------------------------

odd = st.text(max_size=6) | st.sampled_from(
    ['', '-1', '0', '2', '9' * 20, 'nan', '[1', 'caf\udce9', '\x1b[31m', 'no/such']
)
names = st.sampled_from(
    [
        'prism',
        'navira:tau=.1',
        'mdlm',
        'first-hitting',
        'p2',
        'navria',
        'prism:eta',
        'prism:eta=[1]',
    ]
)
options = {
    '--policy': names | odd,
    '--set': st.sampled_from(['eta=.3', 'tau=warm', 'n_remask=' + '1' * 400]) | odd,
    '--budget': st.sampled_from(['1', '2', '4']) | odd,
    '-n': st.sampled_from(['1', '2']) | odd,
    '--length': st.sampled_from(['1', '8', '12', '99']) | odd,
    '--beside': names,
    '--replay': st.sampled_from(['r.html', 'no/such/r.html', '/proc/r.html']),
    '--import': st.just('bad.py'),
    '--reference': st.just('none'),
    '--out': st.just('out'),
}
others = (
    'seed max-new-tokens block-length eos prompt prompts infill device dtype model mask-id '
    'tokens steps budgets task'
)
options |= {f'--{name}': odd for name in others.split()}
flags = st.sampled_from([['--json'], ['--chat'], ['--aligned'], ['-h'], []])
commands = st.sampled_from(
    ['generate', 'fill', 'solve', 'compare', 'info', 'help', 'sample', 'report', 'evaluate']
)
arguments = st.lists(
    st.sampled_from([*options]).flatmap(lambda k: options[k].map(lambda v: [k, v])), max_size=4
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(command=commands, first=odd | st.just('a ___.'), more=arguments, flag=flags)
def test_whatever_is_typed_ends_in_a_result_or_in_a_sentence(
    command, first, more, flag, tmp_path, monkeypatch, capsys
):
    import navira as package

    real = package.load
    tiny = small_lm(seed=3)
    monkeypatch.setattr(
        package,
        'load',
        lambda source=None, *a, **how: real(source, *a, **how) if source else tiny,
        raising=False,
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'bad.py').write_text('1 / 0\n')
    code, printed = said(capsys, command, *[first] * bool(first), *sum(more, flag))
    assert code in (0, 1, 2) and 'Traceback' not in printed.err
    assert '\x1b' not in printed.out  # a text cannot control the terminal
    assert code != 2 or printed.err.strip()


@pytest.mark.parametrize('encoding', ['ascii', 'cp1252'])
def test_what_the_terminal_lacks_is_spelt_out(encoding):
    r = navira(*'generate 日本 --max-new-tokens 2 --budget 2'.split(), PYTHONIOENCODING=encoding)
    assert r.returncode == 0 and r'\u65e5\u672c' in r.stdout, r.stderr


def test_a_mistake_in_a_process_of_its_own():
    r = navira('generate', '--policy', 'navria')
    assert r.returncode == 2 and not r.stdout
    assert r.stderr == "navira: policy 'navria': did you mean 'navira'?\n"


@pytest.mark.parametrize(
    'words, expected',
    [
        (['generate', '--steps', '16'], '--budget, a number of forward passes'),
        (['generate', '--cfg-scale', '2'], 'expected a prompt alone'),
        (['generate', '--num-steps', '16'], 'expected --budget, a number'),
        (['generate', '--gen-length', '16'], 'expected --max-new-tokens'),
        (['generate', '--max-length', '16'], 'expected --length'),
        (['generate', '--num-samples', '2'], 'expected -n'),
        (['generate', '--batch-size', '2'], '-n is the number of texts'),
        (['generate', '--stop', 'x'], 'expected --eos, as a text ends'),
        (['generate', '--output', 'x'], '> FILE'),
        (['fill', 'a ___', '--out', 'x'], '> FILE'),
        (['evaluate', '--out', 'x'], '--compact FOLDER'),
        (['compare', '--steps', '16'], '--budgets counts'),
        (['train', '--budget', '5'], '--epochs and --minutes'),
        (['adapt', '--budget', '5'], '--epochs and --minutes'),
        (['generate', '--temperature', '.5'], '--set temperature=VALUE'),
        (['solve', '--top-p', '.5'], '--set top_p=VALUE'),
        (['compare', '--top-p', '.5'], 'prism:top_p=VALUE'),
        (['train', '--steps', '5'], '--epochs and --minutes'),
        (['finetune', '--minutes', '5'], '--head-steps and --joint-steps'),
        (['finetune', '--steps', '5'], '--head-steps and --joint-steps'),
        (['sweep', 'small', '--out', 'x'], '--store FOLDER'),
        (['generate', '--import', 'no.py'], 'no.py: not found'),
        (['generate', '--set', 'name=x'], "hyper-parameter 'name'"),
        (['generate', '-p', 'prism:name=x'], "hyper-parameter 'name'"),
        (['sweep', 'small', '--set', 'source=x'], "setting 'source'"),
    ],
)
def test_words_of_other_programs_lead_to_ours(words, expected, capsys):
    code, printed = said(capsys, *words)
    said_so = ' '.join(printed.err.split())
    assert code == 2 and expected in said_so
    assert words[1] != '--cfg-scale' or '--set' not in said_so


@pytest.mark.parametrize(
    'words',
    [
        ['generate', '--prompts=~/no.txt'],
        ['solve', '~/no.txt'],
        ['info', '--import=~/no.py'],
        ['evaluate', '--store=~/no'],
        ['train', '--data=~/no.txt', '--out=~/out'],
    ],
)
def test_a_path_may_begin_with_the_home_folder(words, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    code, printed = said(capsys, *words)
    assert code == 2 and f'{tmp_path}/no' in printed.err.replace('\n', ''), printed


@given(st.floats(allow_nan=False), st.integers(-(10**30), 10**30))
def test_a_number_may_be_spelled_as_python_does(x, i):
    from navira.cli.app import hypers

    assert hypers([f'a={x!r}', f' b = {i:_} ', 'c=text']) == dict(a=x, b=i, c='text')


ERRORS = MemoryError(), RuntimeError('cannot allocate'), ZeroDivisionError()


@pytest.mark.parametrize('error', ERRORS, ids=repr)
def test_memory_that_runs_out_is_a_sentence_and_a_bug_is_a_traceback(error, monkeypatch, capsys):
    import navira as package

    def load(*_, **how):
        raise error

    monkeypatch.setattr(package, 'load', load, raising=False)
    if error is ERRORS[-1]:
        with pytest.raises(ZeroDivisionError):
            said(capsys, 'generate')
    else:
        code, printed = said(capsys, 'generate')
        assert code == 2 and 'not enough memory' in printed.err


# --- policies of one's own ------------------------------------------------------------------------


def test_an_own_policy_runs_in_a_command(own, run):
    (own.parent / 'beside.py').write_text('NAME = "mine"\n')
    own.write_text(
        own.read_text().replace("@register('mine')", 'from beside import NAME\n@register(NAME)')
    )
    assert 'how often' in run('info', 'mine', '--import', own)
    assert run(
        'generate', '--import', own, '--policy', 'mine:eta=.5', '--budget', 4, '--length', 16
    )


def test_an_own_module_is_found_from_here(own, run, tmp_path, monkeypatch):
    own.rename(tmp_path / 'my_rules.py')
    monkeypatch.chdir(tmp_path)
    assert 'how often' in run('info', 'mine', '--import', 'my_rules')


@pytest.mark.parametrize(
    'text, sentence',
    [
        ('import navira\n', 'it registers no policy'),
        ('import sys\nsys.exit(0)\n', 'ends the program with SystemExit(0)'),
        ('import navira\n\n1 / 0\n', 'line 3: ZeroDivisionError: division by zero'),
    ],
)
def test_an_own_file_that_fails_is_named_with_its_line(text, sentence, own, refuses):
    own.write_text(text)
    refuses(sentence, 'generate', '--import', own)


@pytest.mark.parametrize('error', ['1 / 0', "raise ValueError('no width')"])
def test_an_error_in_an_own_score_names_file_and_line(own, error, refuses):
    own.write_text(OWN.format(body=error))
    refuses(f'{own}: line 8: ', *'generate -p mine --budget 4 --length 8 --import'.split(), own)


# --- help --------------------------------------------------------------------------


def test_version_and_help(run):
    import navira as package

    assert run('--version').strip() == f'navira {package.__version__}'
    for words in ([], ['generate'], ['compare']):
        assert run('help', *words) == run(*words, '-h') == run(*words, '--help')
    commands = typer.main.get_command(__import__('navira.cli.app').cli.app.app).commands
    shown = ' '.join(run('--help').split())
    assert all(f'{k} {v.get_short_help_str(200)}' in shown for k, v in commands.items())


@pytest.mark.parametrize(
    'command, kind',
    [
        ('train', 'TrainConfig'),
        ('finetune', 'FinetuneConfig'),
        ('adapt', 'AdaptConfig'),
        ('critic', 'CriticConfig'),
    ],
)
def test_every_setting_of_a_training_run_is_an_option(run, command, kind):
    from navira.training import settings

    shown = run(command, '--help')
    for f in fields(getattr(settings, kind)):
        assert f'--{f.name.replace("_", "-")} ' in shown


def test_help_and_version_need_no_torch():
    code = (
        'import sys; from navira.cli import main\n'
        "try: main(['train', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
