#!/usr/bin/env bash
# Formats every C++ file of the tree by .clang-format, with the version of Debian 12: other versions differ in details.
# The formatter does not wrap long comments, but --check finds them.
#
#   tools/format.sh            formats in place
#   tools/format.sh --check    changes nothing; fails if a file is not formatted; exits with 77 without the formatter
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-format-14 >/dev/null; then
  echo "clang-format-14 is not installed (tools/setup.sh --dev)"
  exit 77
fi

folders=()
for folder in include src sharding context_parallel python tests bench examples; do
  [[ -d $folder ]] && folders+=("$folder")
done
mapfile -d '' files < <(find "${folders[@]}" \( -name '*.h' -o -name '*.cc' -o -name '*.inc' \) -print0)

# Formats all files in one process. Prints only the names from its report.
check_format() {
  local report
  report=$(clang-format-14 --dry-run --Werror "${files[@]}" 2>&1) && return
  sed -n 's/^\([^: ]*\):[0-9]*:[0-9]*: error: .*/not formatted (run tools\/format.sh): \1/p' <<<"$report" | sort -u
  return 1
}

check_comments() {
  ! LC_ALL=C.UTF-8 grep -nHE '^.{111,}' "${files[@]}" |
    sed -nE 's/^([^:]*:[0-9]+):.*\/\/ .*/comment longer than 110 columns (wrap it by hand): \1/p' | grep .
}

check() {
  local result=0
  check_format || result=1
  check_comments || result=1
  return "$result"
}

case "${1:-}" in
  "") clang-format-14 -i "${files[@]}" ;;
  --check) check ;;
  *) echo "format: unknown option '$1'; the only one is --check" >&2; exit 2 ;;
esac
