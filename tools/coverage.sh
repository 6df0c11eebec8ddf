#!/usr/bin/env bash
# Measures the lines and branches of the engine, of sharding and of context parallelism that the thread-rank tests reach, in a
# build of its own (build/coverage). Exit code: 77 (skipped) without gcovr, 2 if another script uses build/ of this tree.
#
#   tools/coverage.sh              prints a line for each file, and the totals
#   tools/coverage.sh --details    also writes an HTML page for each file, in build/coverage/html
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/script_functions.sh
print_help "$@"

command -v gcovr >/dev/null || { echo "gcovr is not installed (tools/setup.sh --dev)" >&2; exit 77; }

lock_build "$@"
cmake --preset coverage
cmake --build --preset coverage --target weft_tests_threads
find build/coverage -name '*.gcda' -delete
# A few schedules suffice: more of them run the same code in other orders.
WEFT_SCHEDULES=20 ctest --test-dir build/coverage --parallel "$(nproc)" --output-on-failure --label-regex '^threads$' </dev/null

report=(gcovr --root . --filter 'sharding/' --filter 'context_parallel/' --filter 'src/comm/' --object-directory build/coverage
        --exclude-throw-branches --exclude-unreachable-branches)
"${report[@]}" --print-summary
echo "== branches"
"${report[@]}" --branches | tail -n +5
if [[ ${1:-} == --details ]]; then
  mkdir -p build/coverage/html
  "${report[@]}" --html-details build/coverage/html/index.html
fi
