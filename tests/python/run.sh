#!/usr/bin/env bash
# Runs pytest in a virtual environment of tools/python_venv.sh: run.sh FOLDER [ARGUMENTS...], or a Python program there:
# run.sh FOLDER --program FILE [ARGUMENTS...]. Exit code 77 (skipped) if weft is not installed there.
set -euo pipefail
python=$1/bin/python
shift
if ! "$python" -c 'import weft' 2>/dev/null; then
  echo "skipped: weft is not installed in the virtual environment; see the test python.venv"
  exit 77
fi
if [[ "${1:-}" == --program ]]; then
  shift
  exec "$python" "$@"
fi
exec "$python" -m pytest "$@"
