#!/usr/bin/env bash
# The checks that need CUDA, on any machine with a GPU: a few minutes. PYTHON names an environment that has a CUDA torch,
# transformers and the test extra; without CUDA every check is skipped, and this script says so and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "no CUDA device that torch sees" >&2; exit 2; }
PYTHONPATH="$PWD" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false exec "$python" -m pytest -q tests/gpu "$@"
