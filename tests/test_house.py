"""The house: what is built, what it holds, and the rules that every module and notebook keeps."""
import ast, json, os, re, shutil, subprocess, sys, tarfile, zipfile
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

root = Path(__file__).resolve().parent.parent
ini = ConfigParser(delimiters=['='])
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
sys.path.insert(0, str(root/'tools'))
import colab, order

def dotted(path): return '.'.join(path.relative_to(root/'navira').with_suffix('').parts)
modules = {dotted(p): p for p in sorted((root/'navira').rglob('*.py'))}      # 'peers.remdm' -> its path
notebooks = order.notebooks()
weights = set('model.safetensors config.json tokenizer.json training.json README.md'.split()
              + 'critic.safetensors critic.json critic-training.json'.split())
weights |= {f'sudoku/{name}' for name in weights}
above = list(order.modules())      # each may import those before it

def cells(nb, kind=None):
    found = json.loads(nb.read_text(encoding='utf-8'))['cells']
    return [c for c in found if kind in (None, c['cell_type'])]
def source(c): return ''.join(c['source'])
def requirements(): return [Requirement(r) for k, v in cfg.items() if k.endswith('requirements') for r in v.split()]

@pytest.mark.parametrize('name', modules)
def test_a_name_is_defined_once(name):
    "A second function of the same name would replace the first, in every cell above it too"
    body = ast.parse(modules[name].read_text(encoding='utf-8')).body
    seen = [n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    assert not {n for n in seen if seen.count(n) > 1}

# --- settings, constraints -------------------------------------------------------------------------------------------
def test_version_is_one():
    import navira
    assert navira.__version__ == cfg['version']
    assert re.search(rf"^## {re.escape(cfg['version'])}$", (root/'CHANGELOG.md').read_text(), re.M)

@pytest.fixture(scope='module')
def pins():
    lines = [l for l in (root/'constraints.txt').read_text().splitlines() if l and l[0] != '#']
    return dict(l.split('==') for l in lines)

def test_constraints_are_exact(pins):
    assert all(re.fullmatch(r'[\w.]+', v) for v in pins.values()), 'no local suffix such as +cpu'
    assert all(canonicalize_name(n) == n for n in pins)

@pytest.mark.parametrize('req', requirements(), ids=str)
def test_constraints_cover(req, pins):
    assert req.specifier.contains(pins[canonicalize_name(req.name)])

def test_constraints_are_what_runs_here(pins):
    def here(n):
        try: return version(n).split('+')[0]
        except PackageNotFoundError: return None
    ours = {n: v for n, v in pins.items() if n != 'torch'}      # torch is the user's choice
    differ = {n: (v, here(n)) for n, v in ours.items() if here(n) not in (None, v)}
    assert not differ

# --- the library -----------------------------------------------------------------------------------------------------
def imports(path):
    "Dotted names of what a module imports: `from ..base.files import x` as navira.base.files.x"
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import): yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[:len(package) - node.level + 1] if node.level else ()
            source = '.'.join([*up, *([node.module] if node.module else [])])
            yield from (f'{source}.{a.name}' for a in node.names)

def rooms_in(path):
    "Our modules that a module imports"
    parts = [n.split('.')[1:] for n in imports(path) if n.startswith('navira.')]
    there = {'.'.join(p[:k]) for p in parts for k in range(1, len(p) + 1)}
    return there & set(above)

def test_imports_are_spelled_out(tmp_path):
    "The reader of imports, which the tests below rely on"
    assert set(imports(modules['__init__'])) > {'navira.schedules', 'importlib.import_module'}
    assert rooms_in(modules['__init__']) > {'schedules', 'sampling'}

@pytest.mark.parametrize('name', [m for m in modules if m != '_modidx'])
def test_library_needs_no_development_tool(name):
    tools = {Requirement(r).name for r in cfg['dev_requirements'].split()} | {'IPython'} - {'setuptools'}
    lazy = {'IPython'}  # a replay shows itself in a notebook, where IPython is
    assert not {n.split('.')[0] for n in imports(modules[name])} & (tools - lazy)

# Imports inside functions, or for type checkers alone, that close a circle; none may come to them.
DEFERRED = {'training.pretraining': {'training.card'}, 'training.finetuning': {'training.card', 'training.critic'},
            'evaluation.perplexity': {'evaluation.references'},
            'experiments.old_store': {'experiments.old_run'}, 'experiments.old_results': {'experiments.readings'}}

@pytest.mark.parametrize('name', above)
def test_imports_point_only_to_rooms_above(name):
    "The order is the list in tools/order.py"
    below = rooms_in(modules[name]) - set(above[:above.index(name)]) - DEFERRED.get(name, set())
    assert not below, f'{name} imports {below}'

def test_every_module_has_a_notebook():
    "The packages' __init__ and nbdev's index aside"
    assert set(above) == {m for m in modules if m.split('.')[-1] not in ('__init__', '__main__')} - {'_modidx'}

def test_syntax_is_of_python_311():
    for p in [*modules.values(), *(root/'tests').rglob('*.py'), *(root/'tools').glob('*.py'), root/'setup.py']:
        ast.parse(p.read_text(encoding='utf-8'), p.name, feature_version=(3, 11))

def test_make_test_says_in_one_line_that_the_site_was_not_tested(tmp_path):
    "Where `make docs` has not run; with CI=true that fails"
    (tmp_path/'tests').mkdir()
    for f in ('conftest.py', 'test_site.py'): shutil.copy(root/'tests'/f, tmp_path/'tests')
    (tmp_path/'tests'/'torch.py').touch()      # of which these two need nothing
    shutil.copytree(root/'tools', tmp_path/'tools')
    two = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist',
           '-k', 'the_site_is_there or every_notebook', 'tests']
    def run(ci): return subprocess.run(two, cwd=tmp_path, env=os.environ | dict(CI=ci), capture_output=True, text=True)
    said = [line for line in run('').stdout.splitlines() if 'make docs' in line]
    assert len(said) == 1 and '2 tests skipped' in said[0] and 'not tested' in said[0]
    assert (r := run('true')).returncode == 1 and '2 failed' in r.stdout

# --- the notebooks ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('nb', notebooks, ids=order.room_of)
class TestNotebook:
    def test_opens_with_title_and_line(self, nb):
        assert re.match(r'# .+\n+> .+', source(cells(nb)[0]))

    def test_outputs_are_stored_and_no_cell_failed(self, nb):
        outputs = [o for c in cells(nb, 'code') for o in c['outputs']]
        assert not [o['evalue'] for o in outputs if o['output_type'] == 'error']
        runs = [c for c in cells(nb, 'code') if not re.search(r'^#\|\s*(eval:\s*false|hide)', source(c), re.M)]
        assert outputs or not runs, 'run it: make notebooks NB=' + str(nb.relative_to(root))

    def test_no_path_of_a_machine(self, nb):
        outputs = [o for c in cells(nb, 'code') for o in c['outputs']]
        text = '\n'.join(source(c) for c in cells(nb)) + json.dumps(outputs)
        assert not re.findall(r'(?<![\w.])/(?:root|home|work|Users)/[\w./-]+', text)

    def test_imports_stand_in_cells_of_their_own(self, nb):
        "Docs processing runs any cell that imports: one that does more would be run there too"
        for c in cells(nb, 'code'):
            if re.search(r'^\s*[%!]|nbdev_export|^#\|\s*eval:\s*false', source(c), re.M): continue
            kinds = {isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.parse(source(c)).body}
            assert len(kinds) < 2, source(c)

    def test_opens_on_colab(self, nb):
        "Under the title a badge, and a line that fetches the repository: `make sync` writes both"
        assert cells(nb)[1:3] == colab.opening(nb, cfg)

def test_every_notebook_has_its_place_in_the_sidebar():
    "`make sync` writes it from the list in tools/order.py"
    assert not order.unlisted() and set(order.rooms()) == set(order.rooms(*order.SIDEBAR))
    assert (root/'nbs'/'sidebar.yml').read_text(encoding='utf-8') == order.sidebar()
    chapters = [room for room in order.rooms() if room[0].isdigit()]
    assert chapters == sorted(chapters)

# --- README ----------------------------------------------------------------------------------------------------------
def test_readme_is_made_from_index():
    tool = root/'tools'/'make_readme.py'
    r = subprocess.run([sys.executable, tool, '--check'], cwd=root, capture_output=True, text=True)
    assert r.returncode == 0, r.stderr

def test_readme_is_read_in_one_sitting():
    assert len((root/'README.md').read_text(encoding='utf-8').split()) <= 600

def test_readme_names_the_two_commands_and_its_links_lead_somewhere():
    text = (root/'README.md').read_text(encoding='utf-8')
    assert 'make demo' in text and 'make test' in text
    links = re.findall(r'\]\((?![a-z]+:|#)([^)#\s]+)', text)
    assert not [l for l in links if not (root/l).exists()]

def test_contributing_is_true():
    "Its links lead somewhere, and make knows its targets"
    text = (root/'CONTRIBUTING.md').read_text(encoding='utf-8')
    assert not [l for l in re.findall(r'\]\((?![a-z]+:|#)([^)#\s]+)', text) if not (root/l).exists()]
    targets = set(re.findall(r'^([a-z-]+):', (root/'Makefile').read_text(), re.M))
    assert set(re.findall(r'\bmake ([a-z-]+)', text)) <= targets

def test_no_message_names_an_index_where_there_is_none():
    "`pip install navira[...]` would install somebody else's package, or nothing"
    folders = ('navira', 'py'), ('nbs', 'ipynb'), ('tools', 'py')
    said = [p for d, ext in folders for p in (root/d).rglob(f'*.{ext}')] + [root/'README.md', root/'Makefile']
    assert not [p.name for p in said if 'install navira' + '[' in p.read_text(encoding='utf-8')]

# --- what others read ------------------------------------------------------------------------------------------------
def test_citation_is_of_this_version():
    cff = yaml.safe_load((root/'CITATION.cff').read_text(encoding='utf-8'))
    assert (cff['version'], cff['url'], cff['repository-code']) == (cfg['version'], cfg['git_url'], cfg['git_url'])
    assert cff['license'] == 'Apache-2.0'
    assert 'Fomenko' in [a['family-names'] for a in cff['references'][0]['authors']]

@pytest.mark.parametrize('of', ['', 'sudoku'])
def test_model_card_is_what_the_records_give(of):
    from navira.training.card import model_card
    folder = root/'navira'/'weights'/of
    card = (folder/'README.md').read_text(encoding='utf-8')
    assert card == model_card(*(json.loads((folder/f).read_text()) for f in ('training.json', 'critic-training.json')))
    meta = dict(license='apache-2.0', library_name='navira') | ({} if of else dict(pipeline_tag='text-generation'))
    assert yaml.safe_load(card.split('---')[1]).items() >= meta.items()
    sections = {'How to load', 'Intended use', 'Limits', 'License and citation', 'Data', 'Training', 'Evaluation',
                'Quality head', 'Critic'}
    assert sections == set(re.findall('^## (.+)$', card, re.M))

# --- what is built ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def dist(tmp_path_factory):
    "Folder with the sdist, and the wheel built from it: no network"
    src = tmp_path_factory.mktemp('source')/'navira'
    runs = 'demo', 'runs', 'checkpoints', 'build', 'dist', '_docs', '_proc', '*.egg-info'
    shutil.copytree(root, src, ignore=shutil.ignore_patterns('.*', '__pycache__', 'nbs', *runs))
    out = src.parent/'dist'
    build = [sys.executable, '-m', 'build', '--no-isolation', '--outdir', out, src]
    r = subprocess.run(build, capture_output=True, text=True)
    assert r.returncode == 0, (r.stdout + r.stderr)[-4000:]
    return out

def beneath(names, folder):
    "Names of files below a folder -> their full names"
    return {n.split(folder)[1]: n for n in names if folder in n and not n.endswith('/')}

def is_the_model(names, read):
    have = beneath(names, 'navira/weights/')
    assert weights <= set(have)
    for name in weights: assert read(have[name]) == (root/'navira'/'weights'/name).read_bytes(), name

def has_the_configurations(names):
    assert {p.name for p in (root/'navira'/'configs').glob('*.toml')} == set(beneath(names, 'navira/configs/'))

def test_wheel_brings_the_embedded_model(dist):
    with zipfile.ZipFile(next(dist.glob('*.whl'))) as z:
        is_the_model(z.namelist(), z.read)
        has_the_configurations(z.namelist())
        ours = {p.relative_to(root).as_posix() for p in modules.values()}
        assert ours | {'navira/py.typed'} <= set(z.namelist())
        meta = next(n for n in z.namelist() if n.endswith('METADATA'))
        text = z.read(meta).decode()
    extras = [f'Provides-Extra: {e}' for e in ('eval', 'mauve', 'dev', 'lab')]
    for line in ['Requires-Python: >=3.11', 'License-Expression: Apache-2.0', *extras]: assert line in text
    assert 'Programming Language :: Python :: 3.12' in text

def test_sdist_brings_the_embedded_model(dist):
    with tarfile.open(next(dist.glob('*.tar.gz'))) as t:
        is_the_model(t.getnames(), lambda n: t.extractfile(n).read())
        has_the_configurations(t.getnames())
        names = {n.split('/', 1)[-1] for n in t.getnames()}
        assert {'settings.ini', 'setup.py', 'LICENSE', 'README.md', 'CHANGELOG.md'} <= names

def test_embedded_models_are_small_enough():
    sizes = {p.relative_to(root/'navira'/'weights').as_posix(): p.stat().st_size
             for p in (root/'navira'/'weights').rglob('*') if p.is_file()}
    assert sizes['model.safetensors'] <= 32*2**20 and sizes['critic.safetensors'] <= 8*2**20
    assert sum(n for name, n in sizes.items() if name.startswith('sudoku/')) <= 6*10**6
    assert sum(sizes.values()) <= 40*2**20

def test_installed_wheel_works_away_from_the_repository(dist, tmp_path):
    "The model loads from an installed wheel, not from the source tree"
    whl = next(dist.glob('*.whl'))
    alone = ['-q', '--no-deps', '--no-index', '--no-compile', '--target', tmp_path]
    subprocess.run([sys.executable, '-m', 'pip', 'install', *alone, whl], check=True)
    code = """if True:
        import sys; sys.path.insert(0, sys.argv[1])
        import navira
        assert navira.__file__.startswith(sys.argv[1]), navira.__file__
        print(navira.load().length)"""
    python = [sys.executable, '-c', code, str(tmp_path)]
    r = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True)
    assert r.returncode == 0 and int(r.stdout) > 0, r.stderr

@pytest.mark.parametrize('of', ['', 'sudoku'])
def test_the_embedded_heads_are_trained(of):
    "A head of zeros would pass everywhere else: it ranks at random"
    import navira
    record = json.loads((root/'navira'/'weights'/of/'training.json').read_text())
    model = navira.load(of or None)
    assert model.quality.output_layer.linear.weight.abs().max() > 0
    assert record['parameters']['quality'] > 0 and record['quality']['low'] > .5
    assert sum(p.numel() for p in model.parameters()) == sum(record['parameters'].values())
