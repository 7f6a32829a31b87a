#!/usr/bin/env bash
# All that wants a GPU. Give it again after a stop: sweep and evaluate go on. Rehearsed without a GPU, in minutes:
#   tools/gpu.sh runs/rehearsal cpu tests/data/rehearsal.toml
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/gpu} device=${2:-cuda} config=${3:-one-gpu} bin=.venv/bin
[ "$device" != cuda ] || $bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    { echo "PyTorch sees no GPU here. With one: make distclean, then make gpu TORCH_INDEX=... with the CUDA index of PyTorch's install page" >&2; exit 1; }
mkdir -p "$out"
$bin/python -m pytest -k real_gpu tests/test_accelerator.py
$bin/python benchmarks/sampling.py --device "$device" --out "$out/benchmark.csv" ${GPU_BENCH:---dtype bfloat16}
$bin/python benchmarks/step_cost.py --device "$device" --out "$out/step_cost.csv" --policies navira-piecewise,prism,llada-low-confidence,dream-entropy,remdm-cap,p2
$bin/navira sweep "$config" --store "$out/store" --set device="$device" ${GPU_SWEEP:-}
$bin/navira evaluate "$out/store"
$bin/navira report "$out/store"
