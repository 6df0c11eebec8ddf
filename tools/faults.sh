#!/usr/bin/env bash
# Runs the program under every fault of tests/faults and prints a line for each. Exit code 0: every case behaved as expected; 5: no
# case of any kind has such a name.
#
#   tools/faults.sh [ranks|checkpoints|launch]     all cases, about an hour; or those of one kind
#   tools/faults.sh [KIND] --table FILE            also appends the results to FILE as Markdown tables
#   tools/faults.sh [KIND] --list | NAME...        prints the names of the cases; runs those whose names contain NAME
#   tools/faults.sh ranks --stops N                stops N runs by SIGTERM at random instants
#   tools/faults.sh checkpoints --resumes N        the same, and resumes each from its checkpoint
#
# Exit code 2: another script uses build/ of this tree.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/script_functions.sh
print_help "$@"
lock_build "$@"
kinds=(ranks checkpoints launch)
case "${1:-}" in
  ranks | checkpoints | launch) kinds=("$1"); shift ;;
esac
cmake --preset release >/dev/null
cmake --build --preset release --target weft_program faulty_rank fault_shim >/dev/null
root=$PWD build=$PWD/build/release
cd "$caller"  # The file of a table is relative to it.
no_case=5  # The names may be those of cases of another kind.
result=$no_case
for kind in "${kinds[@]}"; do
  case $kind in
    ranks) script=$root/tests/faults/faults.py ;;
    *) script=$root/tests/faults/${kind%s}_faults.py ;;
  esac
  code=0
  "$script" "$build/bin/weft" "$build/tests/faults/faulty_rank" "$build/tests/faults/fault_shim.so" "$root/tools/mpirun.sh" "$@" || code=$?
  if ((code != no_case && (code != 0 || result == no_case))); then result=$code; fi
done
exit "$result"
