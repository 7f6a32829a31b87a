"The table of policies and hosts is what happens."
import json
import os
import subprocess
import sys

import pytest

if os.environ.get('CI') != 'true': pytest.importorskip('diffusers')   # CI installs it

def tables(path):
    "Those that a notebook shows, as HTML"
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    shown = [o['data'] for c in cells for o in c.get('outputs', []) if 'data' in o]
    return [''.join(d['text/html']) for d in shown if 'text/html' in d]

def test_the_stored_table_is_what_a_run_gives(root, tmp_path):
    page = root/'nbs'/'hosts'/'where.ipynb'
    run = [sys.executable, root/'tools'/'run_nbs.py', '--out', tmp_path, page]
    subprocess.run(run, check=True, cwd=root, timeout=3000)
    stored = tables(page)
    assert len(stored) == 2 and stored == tables(tmp_path/page.name)
    for answer in ('works', 'needs a head', 'needs a critic', 'cannot: needs shadow passes'):
        assert f'<td>{answer}</td>' in stored[0]
