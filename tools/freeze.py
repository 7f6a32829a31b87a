"""tests/frozen.json from what the policies do now: run it only where a change of samples or costs is wanted.

    python tools/freeze.py
"""
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent.parent/'tests'))
import frozen

frozen.write({name: frozen.measure(name) for name in frozen.registered()})
