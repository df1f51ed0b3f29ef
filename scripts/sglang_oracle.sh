#!/usr/bin/env bash
# The real sglang as judge of exported draft heads, on CPU:
#   scripts/sglang_oracle.sh setup          build its environment (about 4 minutes and 3.3 GB; nothing if it is there)
#   scripts/sglang_oracle.sh check DIR...   load heads through sglang's own classes, one JSON object per line
#   scripts/sglang_oracle.sh serve TARGET EAGLE|EAGLE3 DRAFT --port N [...]   its HTTP server, for `smoke --server`
# The environment is $SGLANG_VENV, by default build/sglang-venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${SGLANG_VENV:-build/sglang-venv}"
ready="$venv/.ready-0.5.23"
needed_mb=6000 # 3.3 GB installed, the rest while pip unpacks

fail() {
  echo "no sglang environment in $venv: $1" >&2
  echo "SGLANG_VENV names one that is there; SGLANG_ORACLE=0 runs the tests without it" >&2
  exit 2
}

setup() {
  [ -e "$ready" ] && return
  mkdir -p "$venv"
  local free_mb
  free_mb="$(df -Pm "$venv" | awk 'NR == 2 {print $4}')"
  [ "$free_mb" -ge "$needed_mb" ] || fail "$free_mb MB are free there, $needed_mb are needed"
  echo "setting up sglang in $venv (once; about 4 minutes)" >&2
  [ -x "$venv/bin/python" ] || "${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv "$venv" || fail "python -m venv failed"
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
  # sglang pins CUDA wheels that cannot be had on CPU: it goes in alone, then what its modules really import.
  "${pip[@]}" torch==2.13.0 \
    && "${pip[@]}" --no-deps sglang==0.5.23 \
    && "${pip[@]}" torch==2.13.0 -r scripts/sglang_oracle/requirements.txt \
    || fail "pip could not install it (see above)"
  touch "$ready"
}

inside() {
  [ -e "$ready" ] || fail "it was never set up (scripts/sglang_oracle.sh setup)"
  SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 PYTHONPATH=scripts/sglang_oracle/stand_ins exec "$venv/bin/python" "$@"
}

case "${1:-}" in
  setup) setup ;;
  check) inside scripts/sglang_oracle/load_heads.py "${@:2}" ;;
  serve) inside scripts/sglang_oracle/serve.py "${@:2}" ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac
