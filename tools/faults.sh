#!/usr/bin/env bash
# Runs the program under every fault of tests/faults and prints what it does. Exit code 0: every case behaved as expected.
#
#   tools/faults.sh                       all cases, about half an hour
#   tools/faults.sh --table FILE          also writes the results as a Markdown table
#   tools/faults.sh --list | NAME...      prints the names of the cases; runs those whose names contain NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cmake --preset release >/dev/null
cmake --build --preset release --target weft_program faulty_rank fault_shim >/dev/null
build=build/release
exec tests/faults/faults.py $build/bin/weft $build/tests/faults/faulty_rank $build/tests/faults/fault_shim.so tools/mpirun.sh "$@"
