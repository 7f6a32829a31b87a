"""Every notebook runs from a fresh process, without its `#| eval: false` and `#| slow` cells. Nothing is written."""
import os, subprocess, sys
from pathlib import Path
import pytest

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root/'tools'))
import order

@pytest.mark.parametrize('nb', order.notebooks(), ids=order.room_of)
def test_runs(nb):
    env = {k: v for k, v in os.environ.items() if k != 'MPLBACKEND'}  # a notebook draws inline
    check = [sys.executable, root/'tools'/'run_nbs.py', '--check', nb]
    r = subprocess.run(check, cwd=root, env=env, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, (r.stdout + r.stderr)[-6000:]
