"""The first code cell of a notebook: on Colab it brings the repository and what notebooks need, elsewhere it does nothing."""
import json, os, shutil, subprocess, sys, sysconfig
from pathlib import Path
import pytest

root = Path(__file__).resolve().parent.parent
cells = json.loads((root/'nbs'/'03_prism.ipynb').read_text(encoding='utf-8'))['cells']
cell = next(''.join(c['source']) for c in cells if c['id'] == 'colab-install')

drive = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for source in json.load(sys.stdin):
    r = shell.run_cell(source)
    if not r.success: sys.exit(3)
"""

def run(python, sources, cwd, **env):
    "Cells, one after the other, in a new IPython"
    env = {k: v for k, v in os.environ.items() if not k.startswith(('COLAB_', 'NAVIRA_', 'PYTHON'))} | env
    return subprocess.run([python, '-c', drive], input=json.dumps(sources), cwd=cwd, env=env, capture_output=True, text=True)

@pytest.fixture(scope='module')
def clean(tmp_path_factory):
    "Python of a new environment that sees what is installed here, navira excepted; pip finds all requirements met"
    folder = tmp_path_factory.mktemp('venv')
    subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
    python = folder/'bin'/'python'
    subprocess.run([python, '-m', 'pip', 'uninstall', '-qy', 'setuptools'], check=True)        # the one of Python 3.11 is too old for torch
    site = subprocess.run([python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))'], check=True, capture_output=True, text=True).stdout.strip()
    (Path(site)/'these.pth').write_text(sysconfig.get_path('purelib') + '\n')      # .pth files in there, such as navira's own, are not read
    return python

@pytest.fixture(scope='module')
def public(tmp_path_factory):
    "The working tree as a repository that can be cloned"
    folder = tmp_path_factory.mktemp('public')/'navira'
    files = subprocess.run(['git', 'ls-files', '-coz', '--exclude-standard'], cwd=root, check=True, capture_output=True, text=True).stdout.split('\0')
    for f in filter(None, files):
        if (root/f).is_file():
            (folder/f).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root/f, folder/f)
    git = lambda *args: subprocess.run(['git', '-c', 'user.name=navira', '-c', 'user.email=navira@example.org', *args], cwd=folder, check=True, capture_output=True)
    git('init', '-b', 'main'), git('add', '-A'), git('commit', '-qm', 'all')
    return folder.as_uri()

def test_elsewhere_it_does_nothing(tmp_path):
    r = run(sys.executable, [cell, 'assert os.listdir() == [] and "colab" not in sys.modules'], tmp_path)
    assert r.returncode == 0, r.stdout + r.stderr

def test_on_colab_the_repository_comes_and_navira_works(clean, public, tmp_path):
    none = run(clean, ['import navira'], tmp_path)
    assert none.returncode == 3 and 'No module named' in none.stdout, 'the environment is not clean'
    use = ['import navira, os, pathlib',
           'assert pathlib.Path(navira.__file__).resolve().is_relative_to(home / "navira") and pathlib.Path.cwd() == home / "navira" / "nbs"',
           'assert pathlib.Path("../results/small/sweep.json").is_file() and pathlib.Path("../benchmarks/results").is_dir()',
           'print(navira.sample(navira.load(), "navira-piecewise", budget=4).texts)',
           '#| slow\nraise SystemError("a slow cell was run")', '#| hide\nimport nbdev; nbdev.nbdev_export(); raise SystemError("exported")',
           cell, 'assert pathlib.Path.cwd() == home / "navira" / "nbs"']      # given twice, it does nothing
    r = run(clean, ['import pathlib; home = pathlib.Path.cwd().resolve()', cell, *use], tmp_path, COLAB_RELEASE_TAG='here', NAVIRA_GIT=public, PIP_NO_INDEX='1', PIP_NO_BUILD_ISOLATION='0')
    assert r.returncode == 0, (r.stdout + r.stderr)[-4000:]
    assert 'left out (slow)' in r.stdout and 'left out (for developers)' in r.stdout
    assert (clean.parent/'navira').is_file(), 'the command line is not installed'
