"""Every notebook runs from a fresh process, without its `#| eval: false` and `#| slow` cells. Nothing is written."""
import os, subprocess, sys
from pathlib import Path
import pytest

root = Path(__file__).resolve().parent.parent
notebooks = sorted((root/'nbs').glob('*.ipynb'))

@pytest.mark.parametrize('nb', notebooks, ids=lambda p: p.stem)
def test_runs(nb):
    env = {k: v for k, v in os.environ.items() if k != 'MPLBACKEND'}  # a notebook draws inline
    r = subprocess.run([sys.executable, root/'tools'/'run_nbs.py', '--check', nb], cwd=root, env=env, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, (r.stdout + r.stderr)[-6000:]
