#!/usr/bin/env bash
# Other producers' own code, on CPU, as judge of what is read and written in their forms: speculators and SpecForge.
#   scripts/producers_oracle.sh setup               put them into a folder (half a minute and 130 MB; nothing if they are there)
#   scripts/producers_oracle.sh speculators make OUT TARGETS | load DIR...           heads as its trainer saves them; loading
#   scripts/producers_oracle.sh specforge make OUT TARGET | load TARGET DIR...       the same; states and exports of training
# The folder is $PRODUCERS_DIR, by default build/producers. It lies over the environment of
# $PRODUCERS_PYTHON, by default `python`, whose torch they use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="${PRODUCERS_DIR:-build/producers}"
wanted="scripts/producers_oracle/requirements.txt"
python="${PRODUCERS_PYTHON:-python}"

fail() {
  echo "no producers in $folder: $1" >&2
  echo "PRODUCERS_DIR names a folder that has them; PRODUCERS_ORACLE=0 runs the tests without" >&2
  exit 2
}

setup() {
  cmp -s "$wanted" "$folder/.ready" && return
  echo "setting up speculators and SpecForge in $folder (once; half a minute)" >&2
  rm -rf "$folder"
  mkdir -p "$folder"
  # What they declare would bring CUDA libraries, a server and a trainer's clients: only what their models import goes in.
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" -r "$wanted" \
    || fail "pip could not install them (see above)"
  cp "$wanted" "$folder/.ready"
}

inside() {
  cmp -s "$wanted" "$folder/.ready" || fail "they were never set up (scripts/producers_oracle.sh setup)"
  OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONPATH="$folder" exec "$python" "$@"
}

case "${1:-}" in
  setup) setup ;;
  speculators | specforge) inside "scripts/producers_oracle/$1_heads.py" "${@:2}" ;;
  *) sed -n '2,5p' "$0" >&2; exit 2 ;;
esac
