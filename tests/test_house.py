"""The house: what is built, what it holds, and the rules that every module and notebook keeps."""
import ast, json, re, subprocess, sys, zipfile
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import colab, house, order
from order import root

cfg = order.settings()
modules = {'.'.join(p.relative_to(root/'navira').with_suffix('').parts): p
           for p in house.modules('navira')}
above = order.modules()      # each may import those before it

def cells(nb): return json.loads(nb.read_text(encoding='utf-8'))['cells']

def source(c): return ''.join(c['source'])

# --- settings, constraints ---
def test_the_version_is_one():
    import navira
    cff = yaml.safe_load((root/'CITATION.cff').read_text(encoding='utf-8'))
    assert navira.__version__ == cfg['version'] == cff['version']
    assert f"\n## {cfg['version']}\n" in (root/'CHANGELOG.md').read_text(encoding='utf-8')

def test_constraints_are_exact_and_cover_what_is_required():
    lines = [l for l in (root/'constraints.txt').read_text().splitlines() if l[0] != '#']
    pins = dict(l.split('==') for l in lines)
    assert all(re.fullmatch(r'[\w.]+', v) for v in pins.values()), 'no local suffix such as +cpu'
    for key, value in cfg.items():
        for r in map(Requirement, value.split() if key.endswith('requirements') else []):
            assert r.specifier.contains(pins[canonicalize_name(r.name)]), r

# --- the library ---
def test_no_development_tool_is_needed():
    tools = {Requirement(r).name for r in cfg['dev_requirements'].split()} - {'setuptools'}
    for name, path in modules.items():
        assert not {n.split('.')[0] for n in house.imports(path)} & tools, name

def test_imports_point_only_to_rooms_above():
    "The order is the list in tools/order.py"
    assert not list(house.upward())

def test_every_module_has_a_notebook_and_every_notebook_its_place():
    "`make sync` writes the sidebar from the list in tools/order.py"
    no_page = '__init__', '__main__'
    assert set(above) == {m for m in modules if not m.endswith(no_page)}
    assert not order.unlisted() and set(order.rooms()) == set(order.rooms(*order.SIDEBAR))
    assert (root/'nbs'/'sidebar.yml').read_text(encoding='utf-8') == order.sidebar()
    chapters = [room for room in order.rooms() if room[0].isdigit()]
    assert chapters == sorted(chapters)

# --- the notebooks ---
def offenders(keeps):
    "The notebooks for which `keeps(its cells, its path)` is false"
    return [order.room_of(nb) for nb in order.notebooks() if not keeps(cells(nb), nb)]

def test_notebooks_open_with_title_and_line_and_on_colab():
    assert not offenders(lambda every, nb: re.match(r'# .+\n+> .+', source(every[0]))
                         and every[1:3] == colab.opening(nb, cfg))

def test_outputs_are_stored_no_cell_failed_and_no_path_is_of_a_machine():
    def keeps(every, nb):
        code = [c for c in every if c['cell_type'] == 'code']
        outputs = [o for c in code for o in c['outputs']]
        runs = [c for c in code
                if not re.search(r'^#\|\s*(eval:\s*false|hide)', source(c), re.M)]
        text = '\n'.join(map(source, every)) + json.dumps(outputs)
        return ((outputs or not runs) and not [o for o in outputs if o['output_type'] == 'error']
                and not re.search(r'(?<![\w.])/(?:root|home|work|Users)/[\w./-]+', text))
    assert not offenders(keeps)

def test_imports_stand_in_cells_of_their_own():
    "Docs processing runs any cell that imports: one that does more would be run there too"
    def mixed(c):
        skip = r'^\s*[%!]|^#\|\s*eval:\s*false'
        if c['cell_type'] != 'code' or re.search(skip, source(c), re.M): return False
        return len({isinstance(n, (ast.Import, ast.ImportFrom))
                    for n in ast.parse(source(c)).body}) > 1
    assert not offenders(lambda every, nb: not any(map(mixed, every)))

# --- what others read ---
@pytest.mark.parametrize('name', ['README.md', 'CONTRIBUTING.md'])
def test_links_lead_somewhere_and_make_knows_its_targets(name):
    text = (root/name).read_text(encoding='utf-8')
    assert not [l for l in re.findall(r'\]\((?![a-z]+:|#)([^)#\s]+)', text)
                if not (root/l).exists()]
    targets = re.findall(r'^([a-z-]+):', (root/'Makefile').read_text(), re.M)
    assert set(re.findall(r'`make ([a-z-]+)', text)) <= set(targets)
    assert name != 'README.md' or len(text.split()) <= 600, 'read in one sitting'

@pytest.mark.parametrize('folder', ['', 'sudoku'])
def test_the_embedded_heads_are_trained(folder):
    "A head of zeros would pass everywhere else: it ranks at random"
    import navira
    record = json.loads((root/'navira'/'weights'/folder/'training.json').read_text())
    model = navira.load(folder or None)
    assert model.quality.output_layer.linear.weight.abs().max() > 0
    assert sum(p.numel() for p in model.parameters()) == sum(record['parameters'].values())

# --- what is built ---
def test_the_installed_wheel_brings_what_the_repository_has(tmp_path):
    build = [sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w',
             tmp_path, root]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(tmp_path.glob('*.whl'))
    with zipfile.ZipFile(wheel) as z:
        for path in (root/'navira').rglob('*.*'):
            if path.is_file() and path.suffix != '.pyc':
                assert z.read(path.relative_to(root).as_posix()) == path.read_bytes(), path
        z.extractall(tmp_path/'site')
    code = 'import navira; print(navira.__file__, navira.load().length)'
    python = [sys.executable, '-I', '-c',
              f'import sys; sys.path.insert(0, {str(tmp_path / "site")!r}); {code}']
    r = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout.startswith(str(tmp_path)), r.stderr

def test_the_embedded_models_are_small():
    assert sum(p.stat().st_size for p in (root/'navira'/'weights').rglob('*.*')) <= 60e6

def test_the_makefile_names_tests_that_exist():
    "One that does not would end the stage with no test run"
    named = re.findall(r'\btests/[\w/]+(?:\.py)?', (root/'Makefile').read_text('utf-8'))
    assert named and not [f for f in named if not (root/f).exists()]
