"""Check a change in under 90 seconds: export it, then ruff, its notebooks and its tests.

    python tools/quick.py               # what differs from main, committed or not
    python tools/quick.py --since HEAD  # only what is not committed
    python tools/quick.py --list        # say what would be checked, and check nothing

A notebook brings its module and the tests named after it: nbs/peers/remdm.ipynb -> navira/peers/remdm.py and
tests/peers/test_remdm.py. `make test` runs everything.
"""
import argparse, os, subprocess, sys, time
import order

root = order.root

def git(*args):
    "Lines that git prints."
    r = subprocess.run(['git', *args], cwd=root, capture_output=True, text=True)
    return r.stdout.splitlines() if r.returncode == 0 else []

def changed(since=None):
    "Paths that differ from `since`: by default where this branch left main; on a clean main, the last commit but one."
    base = since or next(iter(git('merge-base', 'HEAD', 'main') or git('merge-base', 'HEAD', 'origin/main')), 'HEAD')
    if not since and base in git('rev-parse', 'HEAD') and not git('status', '--porcelain'): base = 'HEAD~1'
    names = {*git('diff', '--name-only', base), *git('ls-files', '--others', '--exclude-standard')}
    return sorted(root/n for n in names if (root/n).is_file())

def tests_of(path):
    "Tests named after a module or a notebook, or the file itself if it is one."
    if path.name == 'test_notebooks.py': return set()       # those that changed are run anyway
    if path.name.startswith('test_') and path.suffix == '.py': return {path}
    if root/'nbs' not in path.parents and root/'navira' not in path.parents: return set()
    if path.suffix not in ('.py', '.ipynb'): return set()
    inside = path.relative_to(root/'navira').with_suffix('').parts if root/'navira' in path.parents else ()
    module = order.exports(path) if path.suffix == '.ipynb' else '.'.join(inside)
    if not module: return set()
    *folder, name = module.split('.')
    there = root.joinpath('tests', *folder, f'test_{name}.py')
    return {there} if there.exists() else set()

def plan(paths):
    "(notebooks to run, tests to run, files that ruff reads)"
    inside = lambda folder: [p for p in paths if root/folder in p.parents]
    notebooks = [p for p in inside('nbs') if p in order.notebooks()]
    tests = sorted(set().union(*map(tests_of, paths))) if paths else []
    about = [p for p in paths if p.parent == root or root/'tools' in p.parents or p in notebooks]
    if about: tests.append(root/'tests'/'test_house.py')
    return notebooks, sorted(set(tests)), [p for p in paths if p.suffix in ('.py', '.ipynb')]

def run(name, *command):
    "Run a command and say how it went; its output if it failed."
    env = dict(os.environ, OMP_NUM_THREADS='1')
    start = time.time()
    r = subprocess.run([*map(str, command)], cwd=root, env=env, capture_output=True, text=True)
    print(f'{"ok" if r.returncode in (0, 5) else "FAILED":7} {name} ({time.time() - start:.0f} s)', flush=True)
    if r.returncode in (0, 5): return True      # 5: pytest found no test that is not slow
    print((r.stdout + r.stderr)[-4000:])
    return False

def steps(notebooks, tests, code):
    "(name, command) of each thing to do."
    python = sys.executable
    if notebooks: yield 'sync', ('tools/sync.sh',)
    if code: yield 'ruff', (python, '-m', 'ruff', 'check', '--force-exclude', *code)
    for nb in notebooks: yield f'runs: {order.room_of(nb)}', (python, 'tools/run_nbs.py', '--check', nb)
    built = 'not brings_the_embedded_model and not installed_wheel'      # `make test` builds
    pytest = python, '-m', 'pytest', '-q', '-x', '-m', 'not slow', '-n', '2', '--dist', 'worksteal', '-k', built
    if tests: yield f'{len(tests)} files of tests', (*pytest, *tests)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--since', metavar='COMMIT')
    p.add_argument('--list', action='store_true')
    a = p.parse_args()
    notebooks, tests, code = plan(changed(a.since))
    todo = list(steps(notebooks, tests, code))
    if a.list: return print('\n'.join([*map(str, (t.relative_to(root) for t in tests)), *(name for name, _ in todo)]))
    if not todo: return print('nothing changed')
    if not all([run(name, *command) for name, command in todo]): sys.exit(1)

if __name__ == '__main__': main()
