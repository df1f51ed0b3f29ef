#!/usr/bin/env bash
# Sets up everything and passes the tests: style, types, import layers, then pytest. Arguments go to pytest.
# TEST_ALL=1 also runs the tests marked huge. SGLANG_ORACLE=0 leaves the real sglang out, which loads our exports: its
# environment ($SGLANG_VENV, by default build/sglang-venv) takes about 4 minutes and 3.3 GB, once. PRODUCERS_ORACLE=0 leaves
# speculators and SpecForge out ($PRODUCERS_DIR, by default build/producers: half a minute and 130 MB, once).
EXTRAS="test,megatron,smoke,tune,real"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
export SGLANG_ORACLE="${SGLANG_ORACLE:-1}"
export PRODUCERS_ORACLE="${PRODUCERS_ORACLE:-1}"
[ "$SGLANG_ORACLE" = 0 ] || scripts/sglang_oracle.sh setup
[ "$PRODUCERS_ORACLE" = 0 ] || scripts/producers_oracle.sh setup
ruff check .
ruff format --check .
mypy
lint-imports --no-logo 2> /dev/null || lint-imports
[ -n "${TEST_ALL:-}" ] || set -- -m "not huge" "$@"
exec python -m pytest -n "${TEST_WORKERS:-2}" --dist loadfile "$@"
