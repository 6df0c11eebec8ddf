#!/usr/bin/env bash
# Runs the program under every fault of tests/faults and prints a line for each. Exit code 0: every case behaved as expected.
#
#   tools/faults.sh [ranks|checkpoints|launch]     all cases, about an hour; or those of one kind
#   tools/faults.sh [KIND] --table FILE            also appends the results to FILE as Markdown tables
#   tools/faults.sh [KIND] --list | NAME...        prints the names of the cases; runs those whose names contain NAME
#   tools/faults.sh ranks --stops N                stops N runs by SIGTERM at random instants
#   tools/faults.sh checkpoints --resumes N        the same, and resumes each from its checkpoint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kinds=(ranks checkpoints launch)
case "${1:-}" in
  ranks | checkpoints | launch) kinds=("$1"); shift ;;
esac
cmake --preset release >/dev/null
cmake --build --preset release --target weft_program faulty_rank fault_shim >/dev/null
build=build/release
result=0
for kind in "${kinds[@]}"; do
  case $kind in
    ranks) script=tests/faults/faults.py ;;
    *) script=tests/faults/${kind%s}_faults.py ;;
  esac
  "$script" $build/bin/weft $build/tests/faults/faulty_rank $build/tests/faults/fault_shim.so tools/mpirun.sh "$@" || result=$?
done
exit "$result"
