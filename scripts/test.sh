#!/usr/bin/env bash
# Sets up everything and passes the tests: style, types, import layers, then pytest. Arguments go to pytest.
# TEST_ALL=1 also runs the tests marked huge.
EXTRAS="test,megatron,smoke,tune,real"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ruff check .
ruff format --check .
mypy
lint-imports --no-logo 2> /dev/null || lint-imports
[ -n "${TEST_ALL:-}" ] || set -- -m "not huge" "$@"
exec python -m pytest -n "${TEST_WORKERS:-2}" --dist loadfile "$@"
