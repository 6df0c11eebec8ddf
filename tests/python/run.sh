#!/usr/bin/env bash
# Runs pytest in a virtual environment of tools/python_venv.sh: run.sh FOLDER [ARGUMENTS...], or a Python program there:
# run.sh FOLDER --program FILE [ARGUMENTS...]. Exit code 77 (skipped) if weft is not installed there.
set -euo pipefail
python=$1/bin/python
shift
# Prints 1 if the package is installed: one that cannot be imported must fail.
installed=$("$python" -c 'import importlib.util; print(int(importlib.util.find_spec("weft") is not None))' 2>/dev/null) || installed=0
if [[ $installed == 0 ]]; then
  echo "skipped: weft is not installed in the virtual environment; see the test python.venv"
  exit 77
fi
"$python" -c 'import weft'
if [[ "${1:-}" == --program ]]; then
  shift
  exec "$python" "$@"
fi
exec "$python" -m pytest "$@"
