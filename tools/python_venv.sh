#!/usr/bin/env bash
# Makes a virtual environment with PyTorch and weft's Python package, as built from this tree, and prints its Python.
#
#   tools/python_venv.sh [FOLDER]    FOLDER is build/venv by default; a later run updates it
#
# PYTHON names the interpreter, python3 by default. Packages that it has already are not installed again. The build keeps its
# objects in FOLDER/weft-build.
#
# Exit code: 0, 1 if the package does not build, 77 (skipped, with the reason) if Python or PyTorch cannot be had: FOLDER then has
# no weft.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/build/venv}
python=${PYTHON:-python3}

# Removes weft of an earlier run: its tests would run in the place of those of this tree.
skip() {
  rm -rf "$folder"/lib/python*/site-packages/weft "$folder"/lib/python*/site-packages/weft-*.dist-info
  echo "python_venv: skipped: $*" >&2
  exit 77
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || skip "$python is not Python 3.11 or later"
"$python" -m venv --system-site-packages "$folder" >/dev/null 2>&1 ||
  skip "$python cannot make virtual environments (Debian: install python3-venv)"
venv_python=$folder/bin/python

# Prints what pyproject.toml names: named EXPRESSION, of `build` and `optional`.
named() {
  "$venv_python" - "$root/pyproject.toml" <<END
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))
build, optional = project["build-system"]["requires"], project["project"]["optional-dependencies"]
print(*$1, sep="\n")
END
}
mapfile -t wanted < <(named 'build + optional["test"]')
mapfile -t hugging_face < <(named 'optional["hugging-face"]')
"$venv_python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}" cmake ninja >&2 ||
  skip "pip could not install ${wanted[*]}"
"$venv_python" -m pip install --quiet --disable-pip-version-check "${hugging_face[@]}" >&2 ||
  echo "python_venv: pip could not install ${hugging_face[*]}: their tests are skipped" >&2
"$venv_python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=build-dir="$folder/weft-build" "$root" >&2 || {
  echo "python_venv: weft's Python package does not build" >&2
  exit 1
}
echo "$venv_python"
