"""What README and the front pages show under a command is what the command prints today."""
import json, os, re, shlex, subprocess, sys
import pytest

from order import root
from shown import missing, PAGES, shown

def run(command, folder):
    "What a command of the installed package prints"
    words = shlex.split(command)
    assert words[0].endswith('navira'), command
    env = os.environ | dict(PYTHONPATH=str(root), COLUMNS='120')
    done = subprocess.run([sys.executable, '-m', 'navira.cli', *words[1:]], cwd=folder, env=env,
                          capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout

def demo():
    "The commands of `make demo`"
    said = subprocess.run(['make', '-n', 'demo', 'OUT=.'], cwd=root, capture_output=True, text=True)
    return re.findall(r'bin/(navira .*?)(?:;|$)', said.stdout, re.M)

def marks(command): # minutes on loaded cores; CI compares `make demo` in a stage of its own
    return [pytest.mark.slow] * ('generate' in command or command == 'make demo')

COMMANDS = [pytest.param(*each, id=f'{each[0]}: {each[1][:40]}', marks=marks(each[1]))
            for each in shown()]

@pytest.mark.parametrize('page, command, output', COMMANDS)
def test_a_page_shows_what_its_command_prints(page, command, output, tmp_path):
    printed = '\n'.join(run(c, tmp_path) for c in (demo() if command == 'make demo' else [command]))
    assert not missing(output, printed), printed

def test_a_line_that_is_not_printed_is_found():
    assert missing('a 1\n...\nb 2', 'a  1\nx\nb 2\n') == []
    assert missing('a 1\nb 2', 'b 2\na 1') == ['b 2'] and missing('a 1.0', 'a 1.2') == ['a 1.0']
    assert missing('27 [522, 1.5]', '27 [524, 1.6]') == [] != missing('27 of 522', '28 of 522')

def test_the_number_of_policies_is_one():
    "Said in README alone; other pages count none, so that a new policy changes one line"
    import navira
    said = re.findall(r'(\d+) policies\.', (root/'README.md').read_text('utf-8'))
    assert said == [str(len(navira.policies()) // 10 * 10)]
    number = r'\b(?:[678]\d|sixty|seventy|eighty)(?:-\w+)?'
    several = rf'{number}[ \n](?:\w+[ \n])?(?:policies|samplers)\b'
    pages = [p for p in PAGES if p != 'index']
    assert not [p for p in pages if re.search(several, (root/f'nbs/{p}.ipynb').read_text('utf-8'))]

def test_the_headline_is_one_number():
    "NAVIRA-det's perplexity over PRISM's at equal entropy, as studies/equal prints it"
    def read(page): return (root/page).read_text('utf-8')
    cells = {c['id']: c for c in json.loads(read('nbs/studies/equal.ipynb'))['cells']}
    made = ''.join(cells['hline001']['outputs'][0]['data']['text/html'])
    value = re.findall(r'<td>([\d.]+) \[', made)[-1]
    pages = ['index', '08_experiments', 'studies/equal', *(
        f'start/{k}' for k in ('ten_minutes', 'when_it_helps', 'which_policy'))]
    said = {p: read(p) for p in ['README.md', *(f'nbs/{k}.ipynb' for k in pages)]}
    quoted = rf"{re.escape(value)}( \[[^]]+\])? times|\[{re.escape(value)} times\]"
    assert [p for p, text in said.items() if not re.search(quoted, text)] == []
