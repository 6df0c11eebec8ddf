#!/usr/bin/env bash
# Runs clang-tidy-14 on the C++ files that changed, and prints its findings.
#
#   tools/lint.sh [--all] [BASE]
#
# A file changed if git tracks it and it differs from commit BASE. The default of BASE is the commit at which this branch left main
# or origin/main. If both contain HEAD, it is the parent of HEAD. A changed header is read through one source that includes it.
# Files with the most changed lines come first. After WEFT_LINT_SECONDS (60 by default) no further source is read, unless --all is
# given. The compile commands are those of build/debug: the script configures it if it lacks a changed source, but does not build
# it. A changed source that no build compiles is a finding.
#
# Exit code: 0 without findings in the sources that were read, 1 with findings, 2 for bad usage or if build/debug cannot be
# configured, 77 (skipped) without clang-tidy-14 or without a history.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

commands=build/debug/compile_commands.json
seconds=${WEFT_LINT_SECONDS:-60}
base=

fail() { echo "lint: $*" >&2; exit 2; }
skip() { echo "lint: skipped: $*"; exit 77; }

parse() {
  while (($#)); do
    case "$1" in
      --all) seconds=$((1 << 30)); shift ;;
      -*) fail "unknown option '$1'; the only one is --all" ;;
      *) base=$1; shift ;;
    esac
  done
}

is_commit() { git rev-parse --quiet --verify "$1^{commit}" >/dev/null 2>&1; }

default_base() {
  local main fork
  for main in main origin/main; do
    is_commit "$main" || continue
    fork=$(git merge-base "$main" HEAD) || continue
    [[ $fork == "$(git rev-parse HEAD)" ]] || { echo "$fork"; return; }
  done
  echo "HEAD^"
}

# C++ files of the tree whose content differs from the base, the ones with most changed lines first.
changed_files() {
  # With -z, a rename takes three lines: its counts, the old name, the new name.
  git diff --numstat -z --find-renames --diff-filter=AMR "$base" -- '*.cc' '*.h' | tr '\0' '\n' |
    awk -F '\t' '
      names == 2 {names = 1; next}
      names == 1 {names = 0; if (lines > 0) print lines "\t" $0; next}
      {lines = $1 + $2}
      $3 == "" {names = 2; next}
      lines > 0 {print lines "\t" $3}' |
    sort -k 1,1nr -k 2 | cut -f 2
}

is_compiled() { grep -qF "\"$PWD/$1\"" "$commands"; }

# The sources with the stem of a header, and all others that include it.
sources_including() {
  git ls-files "*/$(basename "$1" .h).cc" | xargs -r grep -lF "#include \"$2\""
  git grep -lF "#include \"$2\"" -- '*.cc'
}

# The source through which a file is read: itself if it is a source, or else the first one that includes it, possibly
# through another header.
source_of() {
  local file=$1 include=${1#include/} source header
  [[ $file == *.cc ]] && is_compiled "$file" && { echo "$file"; return; }
  if [[ $file == *.h ]]; then
    for source in $(sources_including "$file" "$include"); do
      is_compiled "$source" && { echo "$source"; return; }
    done
    for header in $(git grep -lF "#include \"$include\"" -- '*.h'); do
      source_of "$header" && return
    done
  fi
  return 1
}

# True if build/debug is configured, and knows all changed sources.
is_configured() {
  [[ -e $commands ]] || return 1
  local file
  while read -r file; do
    [[ $file == *.h ]] || is_compiled "$file" || return 1
  done < <(changed_files)
}

# Sources of other builds, such as variants and modules of Python, are named by their stems.
is_named() { git grep -qwF "$(basename "$1" .cc)" -- '*CMakeLists.txt' '*.cmake' 'bench/*.py'; }

# Prints the changed sources that no build compiles. Fails if there are none.
has_lost_sources() {
  local file found=1
  while read -r file; do
    [[ $file == *.h ]] || is_compiled "$file" || is_named "$file" && continue
    echo "$file: error: no CMakeLists.txt names this source, so no build compiles it"
    found=0
  done < <(changed_files)
  return "$found"
}

sources_to_read() {
  local file
  changed_files | while read -r file; do
    source_of "$file" || echo "lint: $file: build/debug has no source that reads it" >&2
  done | awk '!seen[$0]++'
}

# Prints all findings in one source together, because several sources are read in parallel.
lint_source() {
  local now
  read -r now _ </proc/uptime
  if ((${now%.*} >= LINT_END)); then
    echo "$1" >>"$LINT_LEFT_OUT"
    return
  fi
  local findings
  # The compile commands have parameters that only GCC knows.
  findings=$(clang-tidy-14 -p build/debug --quiet --extra-arg=-Wno-unused-command-line-argument "$1" 2>/dev/null) && return
  printf '%s\n' "${findings:-$1: error: clang-tidy-14 failed}"
  return 1
}

main() {
  parse "$@"
  command -v clang-tidy-14 >/dev/null || skip "clang-tidy-14 is not installed (tools/setup.sh --dev)"
  base=${base:-$(default_base)}
  is_commit "$base" || skip "there is no commit '$base' to compare with"
  # Not in each run: tools/test.sh may build this folder meanwhile.
  is_configured || cmake --preset debug >/dev/null || fail "build/debug cannot be configured"

  local sources now result=0
  has_lost_sources && result=1
  mapfile -t sources < <(sources_to_read)
  echo "lint: ${#sources[@]} sources to read for the changes since $(git log -1 --format='%h (%s)' "$base")"
  ((${#sources[@]})) || return "$result"

  LINT_LEFT_OUT=$(mktemp)
  trap 'rm -f "$LINT_LEFT_OUT"' EXIT
  read -r now _ </proc/uptime
  LINT_END=$((${now%.*} + seconds))
  export LINT_LEFT_OUT LINT_END
  export -f lint_source
  printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'lint_source "$0"' || result=1
  [[ -s $LINT_LEFT_OUT ]] && echo "lint: $seconds seconds are over; sources left out: $(wc -l <"$LINT_LEFT_OUT")"
  return "$result"
}

main "$@"
