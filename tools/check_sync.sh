#!/usr/bin/env bash
# Are notebooks, library, sidebar and README in step? Does what `make sync` does, then asks git whether anything changed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
tools/sync.sh
what=(nbs navira README.md docs_assets)
git diff --exit-code -- "${what[@]}" || { echo "not in sync: commit what 'make sync' writes" >&2; exit 1; }
new=$(git status --porcelain --untracked-files=all -- "${what[@]}")
[ -z "$new" ] || { printf 'not committed:\n%s\n' "$new" >&2; exit 1; }
echo "in sync"
