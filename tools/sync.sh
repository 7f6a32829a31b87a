#!/usr/bin/env bash
# Write what follows from the notebooks: badges and cells for Colab, the library, clean metadata, the sidebar, README.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
python tools/colab.py
python tools/export.py
PYTHONPATH=$PWD python tools/meanings.py
nbdev_clean
python tools/order.py
python tools/make_readme.py
