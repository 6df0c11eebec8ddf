#!/usr/bin/env bash
# Runs PyTorch's own tests of distributed backends over weft, and writes docs/torch_tests.md. About ten minutes on two cores.
#
#   tools/torch_suites.sh [ARGUMENTS...]    arguments of tests/python/torch_suites/run.py, such as --only REGEX
#
# VENV names the virtual environment: build/venv by default, which tools/python_venv.sh makes or updates first.
# Exit code: that of run.py (0: no test failed), or that of tools/python_venv.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${VENV:-}" ]]; then
  VENV=build/venv
  tools/python_venv.sh "$VENV" >/dev/null
fi
if [[ $# -eq 0 ]]; then
  set -- --table docs/torch_tests.md
fi
exec "$VENV/bin/python" tests/python/torch_suites/run.py "$@"
