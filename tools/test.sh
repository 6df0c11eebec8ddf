#!/usr/bin/env bash
# Builds weft and runs all of its tests, those of the engine also under the sanitizers. The last line says
# `N passed, N failed`; the exit code is 0 only if nothing failed.
#
#   tools/test.sh                  the presets release, asan and tsan. The sanitizers then run the suites of the engine, but no
#                                  checks of alignment and no long simulations; their reports name functions, not lines
#   tools/test.sh PRESET...        the given presets (release, debug, asan, tsan); asan and tsan then run all suites
#                                  whose ranks are threads, also those of sharding and context_parallel
#
# Exit code 2: an argument is not one of these presets, or another script uses build/ of this tree.
#
# Many tests wait for processes and deadlines. The other presets are built and tested meanwhile, at low priority: each at a lower
# one than those before it, so that the last tests of one preset leave no core idle.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/script_functions.sh

export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export GTEST_BRIEF=1  # Print failures only.
export TSAN_OPTIONS="${TSAN_OPTIONS:-second_deadlock_stack=1}"

sanitized=threads  # Label of the suites that run under a sanitizer.
long_simulations=FastLinks.*:Scale.*:BrokenRule.*  # Other suites run the same code under the sanitizers.

is_sanitized() { [[ $1 == asan || $1 == tsan ]]; }

build() {
  local preset=$1 options=(-D WEFT_BENCH_OPTIONS=-O1) targets=()  # Nothing here times a benchmark.
  if is_sanitized "$preset"; then
    targets=(--target "weft_tests_$sanitized")
    # Lines of sources take a tenth of the build, checks of alignment a fifth.
    [[ $sanitized == engine ]] && options+=(-D CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -D WEFT_SANITIZE_EXCEPT=alignment)
  fi
  cmake --preset "$preset" "${options[@]}" && cmake --build --preset "$preset" "${targets[@]}"
}

# Under a sanitizer: the suites with the label $sanitized, without address randomization if that is allowed. ThreadSanitizer
# cannot map its shadow memory on kernels that randomize more address bits than it expects.
run() {
  local preset=$1 prefix=() labels=()
  if is_sanitized "$preset"; then
    labels=(--label-regex "^$sanitized\$")
    [[ $sanitized == engine ]] && prefix=(env "GTEST_FILTER=-$long_simulations")
    setarch --addr-no-randomize true 2>/dev/null && prefix+=(setarch --addr-no-randomize)
  fi
  "${prefix[@]}" ctest --test-dir "build/$preset" --parallel "$(nproc)" --output-on-failure --no-tests=error \
    --test-output-size-passed 1000000 "${labels[@]}" --output-junit results/ctest.xml </dev/null
}

# timed DONE STEP PRESET: takes a step and prints the minutes that it took, as in `== release: built in 6.1 min`.
timed() {
  local done="$1 in" step=$2 preset=$3 start end result=0
  read -r start _ </proc/uptime
  "$step" "$preset" || { result=$?; done="$step failed after"; }
  read -r end _ </proc/uptime
  awk -v what="$preset: $done" -v from="$start" -v to="$end" \
    'BEGIN {printf "== %s %.1f min\n", what, (to - from) / 60}'
  return "$result"
}

log_of() { echo "build/$1/test.log"; }

# Builds and tests a preset at low priority, with a log.
check() {
  local preset=$1 niceness=$2
  renice -n "$niceness" "$BASHPID" >/dev/null
  { timed built build "$preset" && timed tested run "$preset"; } >"$(log_of "$preset")" 2>&1
}

check_each() {
  local preset niceness=10
  for preset; do
    check "$preset" "$niceness" &
    ((niceness += 5))
  done
  wait
}

# Ends the builds and tests that are left, and gives benchmarks their usual options at the next build.
clean_up() {
  [[ -n $others ]] && kill -- "-$others" 2>/dev/null && wait "$others"
  local preset
  for preset in "${presets[@]}"; do
    [[ -e build/$preset/CMakeCache.txt ]] && sed -i 's/^\(WEFT_BENCH_OPTIONS:.*=\)-O1$/\1/' "build/$preset/CMakeCache.txt"
  done
}

main() {
  local preset folders=() built
  print_help "$@"
  for preset; do
    [[ $preset =~ ^(release|debug|asan|tsan)$ ]] || { echo "test.sh: '$preset' is not a preset: release, debug, asan or tsan" >&2; exit 2; }
  done
  lock_build "$@"
  presets=("$@") others=
  trap clean_up EXIT
  if ((!${#presets[@]})); then
    presets=(release asan tsan)
    sanitized=engine
  fi
  tools/setup.sh || return 1
  for preset in "${presets[@]}"; do
    rm -rf "build/$preset/results" "$(log_of "$preset")"  # Results of an earlier run must not be counted.
    mkdir -p "build/$preset/results"
    folders+=("build/$preset/results")
  done
  timed built build "${presets[0]}"
  built=$?
  set -m  # The others are a process group, which a signal to this script ends, too.
  check_each "${presets[@]:1}" </dev/null &
  others=$!
  set +m
  ((built)) || timed tested run "${presets[0]}"
  wait "$others" || echo "== ${presets[*]:1}: ended early, by exit code $?"
  others=
  for preset in "${presets[@]:1}"; do
    echo "== $preset: output of $(log_of "$preset")"
    cat "$(log_of "$preset")"
  done
  echo "== results"
  tools/summarize_tests.py "${folders[@]}"
}

main "$@"
