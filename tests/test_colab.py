"""A notebook's first code cell: on Colab it brings the repository and what notebooks need, elsewhere nothing."""
import json, os, shutil, subprocess, sys, sysconfig
from pathlib import Path
import pytest

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root/'tools'))
import colab
cell = colab.install(colab.settings())

drive = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for source in json.load(sys.stdin):
    r = shell.run_cell(source)
    if not r.success: sys.exit(3)
"""

def run(python, sources, cwd, **env):
    "Cells, one after the other, in a new IPython, which sees no environment that is active here"
    ours = 'COLAB_', 'NAVIRA_', 'PYTHON', 'VIRTUAL_ENV', 'IPYTHON'
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | env
    command = [python, '-c', drive]
    return subprocess.run(command, input=json.dumps(sources), cwd=cwd, env=env, capture_output=True, text=True)

@pytest.fixture(scope='module')
def clean(tmp_path_factory):
    "Python of a new environment that sees what is installed here, navira excepted; pip finds all requirements met"
    folder = tmp_path_factory.mktemp('venv')
    subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
    python = folder/'bin'/'python'
    old = ['-m', 'pip', 'uninstall', '-qy', 'setuptools']       # the one of Python 3.11 is too old for torch
    subprocess.run([python, *old], check=True)
    where = [python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))']
    site = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    # .pth files in there, such as navira's own, are not read
    (Path(site)/'these.pth').write_text(sysconfig.get_path('purelib') + '\n')
    return python

@pytest.fixture(scope='module')
def public(tmp_path_factory):
    "The working tree as a repository that can be cloned"
    folder = tmp_path_factory.mktemp('public')/'navira'
    ls = ['git', 'ls-files', '-coz', '--exclude-standard']
    files = subprocess.run(ls, cwd=root, check=True, capture_output=True, text=True).stdout
    for f in filter(None, files.split('\0')):
        if (root/f).is_file():
            (folder/f).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root/f, folder/f)
    git = ['git', '-c', 'user.name=navira', '-c', 'user.email=navira@example.org']
    for args in (['init', '-b', 'main'], ['add', '-A'], ['commit', '-qm', 'all']):
        subprocess.run([*git, *args], cwd=folder, check=True, capture_output=True)
    return folder.as_uri()

def test_elsewhere_it_does_nothing(tmp_path):
    r = run(sys.executable, [cell, 'assert os.listdir() == [] and "colab" not in sys.modules'], tmp_path)
    assert r.returncode == 0, r.stdout + r.stderr

def test_on_colab_the_repository_comes_and_navira_works(clean, public, tmp_path):
    none = run(clean, ['import navira'], tmp_path)
    assert none.returncode == 3 and 'No module named' in none.stdout, 'the environment is not clean'
    here = 'assert pathlib.Path.cwd() == home / "navira" / "nbs"'
    use = ['import navira, os, pathlib', here,
           'assert pathlib.Path(navira.__file__).resolve().is_relative_to(home / "navira")',
           'assert pathlib.Path("../results/small/sweep.json").is_file()',
           'assert pathlib.Path("../benchmarks/results").is_dir()',
           'print(navira.sample(navira.load(), "navira-piecewise", budget=4).texts)',
           '#| slow\nraise SystemError("a slow cell was run")',
           '#| hide\nimport nbdev; nbdev.nbdev_export(); raise SystemError("exported")',
           cell, here]      # given twice, it does nothing
    env = dict(COLAB_RELEASE_TAG='here', NAVIRA_GIT=public, PIP_NO_INDEX='1', PIP_NO_BUILD_ISOLATION='0')
    r = run(clean, ['import pathlib; home = pathlib.Path.cwd().resolve()', cell, *use], tmp_path, **env)
    assert r.returncode == 0, (r.stdout + r.stderr)[-4000:]
    assert 'left out (slow)' in r.stdout and 'left out (for developers)' in r.stdout
    assert (clean.parent/'navira').is_file(), 'the command line is not installed'

def test_a_notebook_in_a_folder_goes_there():
    "Two folders down it finds the repository as well, and does nothing a second time"
    cfg = colab.settings()
    assert "colab.set_up('peers')" in colab.install(cfg, 'peers') and "'../..'" in colab.install(cfg, 'peers')
    room = dict(cells=[dict(cell_type='markdown', id='title', source=['# ReMDM\n', '\n', '> A rule.'])])
    badge, code = colab.with_cells(room, root/'nbs'/'peers'/'remdm.ipynb', cfg)['cells'][1:]
    assert 'nbs/peers/remdm.ipynb' in ''.join(badge['source']) and "set_up('peers')" in ''.join(code['source'])
