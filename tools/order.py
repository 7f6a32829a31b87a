"""The rooms of the house in one list: what may import what, and the order in which the site is read.

    python tools/order.py            # write nbs/sidebar.yml
    python tools/order.py --check    # exit 1 if it differs, or if a notebook is missing from the list

A room is a notebook, named by its path in nbs/ without the suffix. A module imports only from rooms above its own in
ORDER (tests/test_house.py). The site reads in the same order, except that the sections in READ_LAST follow the others,
and the rooms in READ_IN stand in another section.
"""
import argparse, json, re, sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
nbs = root/'nbs'

ORDER = {   # a folder for each section, but for the rooms of the paper
    'Start here': ['which_policy', 'when_it_helps', 'add_your_own', 'policy_template', 'numbers', 'glossary'],
    'Foundations': ['base/checks', 'base/parallel', 'base/noise', 'base/files', 'base/progress', 'base/stats',
        'base/tables'],
    'The paper': ['01_masked_diffusion', 'joint', '02_policies', '03_prism', '04_decoupling',
        '05_stochastic_remasking', '06_schedules'],
    'Models': ['models/layers', 'models/dit', 'models/checkpoints', 'models/sources', 'models/transformers',
        'models/families', 'models/adapter', 'models/load', 'models/critic'],
    'Sampling': ['registry', 'scores', 'replay', 'step_figure', '07_sampling', 'exact', 'filling', 'chatting'],
    'Beyond the paper': ['ours/one_pass', 'ours/apart'],
    'Published policies': ['peers/blocks', 'peers/remdm', 'peers/confident', 'peers/orders', 'peers/adaptive',
        'peers/shadow', 'peers/revisers', 'peers/editors', 'peers/mask_predict', 'peers/loops', 'peers/gidd',
        'peers/correctors', 'peers/critics'],
    'All policies': ['peers/survey'],
    'Tasks with a right answer': ['tasks/sudoku'],
    'Training': ['training/data', 'training/grids', 'training/settings', 'training/runs', 'training/loop',
        'training/objectives', 'training/bound', 'training/pretraining', 'training/quality',
        'training/finetuning', 'training/card', 'training/adapting', 'training/critic'],
    'Evaluation': ['evaluation/perplexity', 'evaluation/references', 'evaluation/endpoints',
        'evaluation/diversity', 'evaluation/mauve', 'evaluation/trajectories', 'evaluation/same_state',
        'evaluation/landmarks', 'evaluation/judge', 'evaluation/tasks'],
    'Experiments': ['experiments/cells', 'experiments/old_sweep', 'experiments/old_store', 'experiments/old_run',
        'experiments/samples', 'experiments/measure', 'experiments/costs', 'experiments/made_up', 'experiments/frames',
        'experiments/old_results', 'experiments/style', 'experiments/figures', 'experiments/readings',
        'experiments/claims', 'experiments/axes', 'experiments/success', 'experiments/worth',
        'experiments/infilling', 'experiments/report',
        'experiments/judged', 'experiments/literal', 'experiments/speed', 'experiments/vocabulary',
        'experiments/benchmark'],
    'Where people work': ['hf/generate', 'hf/lm_eval'],
    'The command line': ['cli/app', 'cli/generate', 'cli/solve', 'cli/compare', 'cli/experiments', 'cli/training',
        'cli/info'],
}
READ_IN = {'07_sampling': 'The paper'}     # a chapter that imports from rooms of a later section
READ_LAST = ['Foundations', 'The command line']

def rooms():
    "All rooms, the lowest first."
    return [room for section in ORDER.values() for room in section]

def notebooks():
    "Paths of all notebooks, in nbs/ and its folders; hidden folders and what Jupyter leaves are none."
    found = (p for p in nbs.rglob('*.ipynb') if not any(d[0] in '._' for d in p.relative_to(nbs).parts))
    return sorted(found)

def room_of(path):
    "nbs/peers/remdm.ipynb -> peers/remdm"
    return path.relative_to(nbs).with_suffix('').as_posix()

def exports(path):
    "The module that a notebook exports, as `peers.remdm`; None if it exports none."
    found = re.search(r'#\|\s*default_exp ([\w.]+)', path.read_text(encoding='utf-8'))
    return found[1] if found else None

def modules():
    "{module: room}, in the order of the rooms: each may import those before it."
    there = {room: exports(nbs/f'{room}.ipynb') for room in rooms() if (nbs/f'{room}.ipynb').exists()}
    return {module: room for room, module in there.items() if module}

def entry(room):
    "A line of the sidebar: numbered chapters show their number, others the title of their page."
    href = f'{room}.ipynb'
    number = re.match(r'\d+(?=_)', Path(room).name)
    if not number: return [f'          - {href}']
    first = json.loads((nbs/href).read_text(encoding='utf-8'))['cells'][0]
    title = re.match(r'# (.+)', ''.join(first['source']))[1].split(':')[0]
    return [f'          - text: "{number[0]} {title}"', f'            href: {href}']

def sidebar():
    "The text of nbs/sidebar.yml, of the notebooks that exist."
    lines = ['# Written by tools/order.py, from the list in it.', 'website:', '  sidebar:', '    style: docked',
             '    collapse-level: 2', '    contents:', '      - text: "Home"', '        href: index.ipynb']
    last = [s for s in READ_LAST if s in ORDER]
    for section in [*(s for s in ORDER if s not in last), *last]:
        listed = [room for room in rooms() if READ_IN.get(room, section) == section and
                  (room in ORDER[section] or room in READ_IN)]
        there = [room for room in listed if (nbs/f'{room}.ipynb').exists()]
        if not there: continue
        lines += [f'      - section: {section}', '        contents:', *(line for room in there for line in entry(room))]
    return '\n'.join(lines) + '\n'

def missing():
    "Notebooks that ORDER does not name."
    return sorted({room_of(p) for p in notebooks()} - {*rooms(), 'index'})

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true', help='write nothing; exit 1 if nbs/sidebar.yml differs')
    check = parser.parse_args().check
    if lost := missing(): sys.exit(f'not in ORDER of tools/order.py: {", ".join(lost)}')
    dest, text = nbs/'sidebar.yml', sidebar()
    if not check: dest.write_text(text, encoding='utf-8')
    elif dest.read_text(encoding='utf-8') != text:
        sys.exit('nbs/sidebar.yml is not what tools/order.py writes: run `make sync`')
