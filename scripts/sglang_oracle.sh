#!/usr/bin/env bash
# The real sglang as judge of exported draft heads, on CPU:
#   scripts/sglang_oracle.sh setup          build its environment (about 3 minutes and 3.3 GB; nothing if it is there)
#   scripts/sglang_oracle.sh check DIR...   load heads through sglang's own classes, one JSON object per line
#   scripts/sglang_oracle.sh serve TARGET EAGLE|EAGLE3 DRAFT --port N [--steps K]   its HTTP server, for `smoke --server`
# The environment is $SGLANG_VENV, by default build/sglang-venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${SGLANG_VENV:-build/sglang-venv}"
ready="$venv/.ready-0.5.23"

setup() {
  [ -e "$ready" ] && return
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$venv"
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
  # sglang pins CUDA wheels that cannot be had on CPU: it goes in alone, then what its modules really import.
  "${pip[@]}" torch==2.13.0
  "${pip[@]}" --no-deps sglang==0.5.23
  "${pip[@]}" torch==2.13.0 -r scripts/sglang_oracle/requirements.txt
  touch "$ready"
}

inside() {
  [ -e "$ready" ] || { echo "no environment in $venv; run: scripts/sglang_oracle.sh setup" >&2; exit 2; }
  SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1 PYTHONPATH=scripts/sglang_oracle/stand_ins exec "$venv/bin/python" "$@"
}

case "${1:-}" in
  setup) setup ;;
  check) inside scripts/sglang_oracle/load_heads.py "${@:2}" ;;
  serve) inside scripts/sglang_oracle/serve.py "${@:2}" ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac
