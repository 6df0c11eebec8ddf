#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz with clang and runs each of them from its seeds. Prints the executions and findings of each.
#
#   tools/fuzz.sh [SECONDS [TARGET...]]    60 seconds for each target; all targets
#
# A finding is a crash, a leak, an input that takes more than 10 seconds, an allocation above 64 MB, or more than 1 GB of
# memory. The input of a finding, and inputs that reach new code, stay in build/fuzz/corpus/TARGET. Exit code: 1 if there is a
# finding, 2 for bad usage, a failed build, or if another script uses build/ of this tree, 130 if a signal ended the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/script_functions.sh
print_help "$@"

seconds=${1:-60}
shift || true
targets=("$@")

fail() {
  echo "fuzz: $*" >&2
  exit 2
}

[[ $seconds =~ ^0*[1-9][0-9]*$ ]] || fail "'$seconds' is not a number of seconds above 0"  # For libFuzzer, 0 has no end.
command -v clang++-14 >/dev/null || fail "clang++-14 is not installed: run tools/setup.sh --dev"
lock_build "$@"
cmake --preset fuzz >/dev/null
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(ls tests/fuzz/corpus)
fi
cmake --build --preset fuzz --target "${targets[@]/#/fuzz_}" >build/fuzz/build.log || fail "the build failed: see build/fuzz/build.log"

# Inputs are small, so an allocation above the limit is not in proportion to the input.
limits=(-max_len=65536 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64)
interrupted=72  # Exit code of libFuzzer after SIGINT or SIGTERM.
found=0
printf '%-20s %12s %10s %s\n' target executions per_second findings
for target in "${targets[@]}"; do
  folder=build/fuzz/corpus/$target
  mkdir -p "$folder/corpus" "$folder/findings" "$folder/tmp"
  log=$folder/log
  TMPDIR=$folder/tmp build/fuzz/tests/fuzz/fuzz_"$target" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$folder/findings/" "$folder/corpus" "tests/fuzz/corpus/$target" >"$log" 2>&1 && result=0 || result=$?
  case $result in $interrupted | 130 | 143) exit 130 ;; esac
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  finding=none
  if ((result)); then
    found=1
    finding=$(grep -m 1 -E 'broken invariant:|ERROR:|SUMMARY:' "$log" || echo "see $log")
  fi
  printf '%-20s %12s %10s %s\n' "$target" "${executions:-?}" "${speed:-?}" "$finding"
done
exit "$found"
