"""Every notebook in one list: what may import what, and where the site shows it.

    python tools/order.py                       # write nbs/sidebar.yml
    python tools/order.py nbs/03_prism.ipynb    # print the tests of the modules that a page exports

A room is a notebook, named by its path in nbs/ without the suffix. ORDER lists the rooms so that
each imports only from those above it (tests/test_house.py), each under the section of the sidebar
that shows it. The first three sections of SIDEBAR are open, the others folded under "Library".
"""
import json, re, sys
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parent.parent
nbs = root/'nbs'

SIDEBAR = ['Start', 'The paper', 'Studies', 'Policies', 'Sampler', 'Models', 'Tasks', 'Training',
           'Evaluation', 'Experiments', 'Hosts', 'Command line', 'Base']

ORDER = """
Base: base/base
The paper: 01_masked_diffusion sampler/joint
Sampler: sampler/draws sampler/ties
Models: models/layers
Sampler: sampler/caching sampler/passes
The paper: 02_policies 03_prism 04_decoupling 05_stochastic_remasking 06_schedules
Models: models/dit models/checkpoints models/transformers models/variants models/canvas
    models/families models/adapter models/load models/critic
Sampler: sampler/budgets sampler/registry sampler/scores sampler/replay sampler/prompts
    sampler/samples sampler/renoise sampler/requests sampler/guidance
The paper: 07_sampling
Sampler: sampler/exact sampler/filling
Policies: ours/one_pass ours/apart peers/blocks peers/remdm peers/confident peers/orders
    peers/adaptive peers/yielding peers/attention peers/revisers peers/editors peers/shadow
    peers/loops peers/best_of peers/correctors peers/uniform peers/critics peers/survey
Tasks: tasks/sudoku tasks/walks tasks/corpora
Training: training/data training/settings training/loop training/objectives training/measures
    training/recipe training/train
Evaluation: evaluation/references evaluation/perplexity evaluation/ladder evaluation/judge
    evaluation/diversity evaluation/mauve
Tasks: tasks/task
Experiments: experiments/experiments experiments/paper
Studies: studies/puzzles studies/settings
Experiments: experiments/board experiments/judged
Studies: studies/infilling studies/speed studies/second_pass studies/equal studies/larger_model
    studies/seeds studies/distribution
The paper: 08_experiments
Start: start/ten_minutes start/live
Hosts: hf/generate hf/lm_eval hosts/servers hosts/diffusers hosts/conformance
Command line: cli/cli
Start: start/which_policy start/when_it_helps start/questions start/add_your_own
    start/policy_template start/glossary
"""

HEAD = """# Written by tools/order.py, from the list in it.
website:
  sidebar:
    style: docked
    collapse-level: 2
    contents:
      - text: "Home"
        href: index.ipynb"""

def settings():
    ini = ConfigParser(delimiters=['='])
    ini.read(root/'settings.ini', encoding='utf-8')
    return ini['DEFAULT']

def rooms(*sections):
    "The rooms of these sections, or all; the lowest first."
    blocks = re.findall(r'^(\S[^:]*):(.*(?:\n .*)*)', ORDER, re.M)
    texts = [text for name, text in blocks if not sections or name in sections]
    return ' '.join(texts).split()

def notebooks():
    "Paths of all notebooks, without Jupyter's copies."
    return sorted(p for p in nbs.rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)

def room_of(path):
    "nbs/peers/remdm.ipynb -> peers/remdm"
    return path.relative_to(nbs).with_suffix('').as_posix()

def exports(path):
    "The modules that a notebook exports, such as `peers.remdm`, in the order of their first cells."
    text = path.read_text(encoding='utf-8')
    named = re.findall(r'"#\|\s*(?:default_exp|exporti?) ([\w.]+)', text)
    return list(dict.fromkeys(named))

def tests_of(path):
    "The test files of the modules that a notebook exports."
    names = [re.sub(r'(\w+)$', r'test_\1.py', m.replace('.', '/')) for m in exports(path)]
    return [root/'tests'/name for name in names if (root/'tests'/name).exists()]

def modules():
    "The modules, in the order of the rooms."
    return [m for room in rooms() for m in exports(nbs/f'{room}.ipynb')]

def entry(room):
    """The sidebar's lines for a room: numbered chapters show their number, others the title of
    their page."""
    link, number = f'{room}.ipynb', re.match(r'\d+', room)
    if not number: return [f'    - {link}']
    first = json.loads((nbs/link).read_text(encoding='utf-8'))['cells'][0]
    title = re.match('# ([^:\n]+)', ''.join(first['source']))[1]
    return [f'    - text: "{number[0]} {title}"', f'      href: {link}']

def listed(section):
    "The sidebar's lines for a section."
    lines = [f'- section: {section}', '  contents:']
    for room in rooms(section): lines += entry(room)
    return lines

def sidebar():
    "The text of nbs/sidebar.yml."
    first, last = [sum(map(listed, part), []) for part in (SIDEBAR[:3], SIDEBAR[3:])]
    lines = [*first, '- section: Library', '  contents:', *(f'    {line}' for line in last)]
    return '\n'.join([HEAD, *(f'      {line}' for line in lines)]) + '\n'

def unlisted():
    "Notebooks that are not in the sidebar."
    return {room_of(p) for p in notebooks()} - {*rooms(*SIDEBAR), 'index'}

if __name__ == '__main__':
    if sys.argv[1:]:
        print(*(t for page in sys.argv[1:] for t in tests_of(Path(page))))
        sys.exit()
    if unlisted(): sys.exit(f'not in ORDER of tools/order.py: {unlisted()}')
    (nbs/'sidebar.yml').write_text(sidebar(), encoding='utf-8')
