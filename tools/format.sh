#!/usr/bin/env bash
# Formats every C++ file of the tree by .clang-format, with the version that Debian 12 has: others differ in details.
#
#   tools/format.sh            in place
#   tools/format.sh --check    changes nothing; fails if something would change, 77 if there is no formatter
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-format-14 >/dev/null; then
  echo "clang-format-14 is not installed (tools/setup.sh --dev)"
  exit 77
fi

folders=()
for folder in include src sharding context_parallel tests bench examples; do
  [[ -d $folder ]] && folders+=("$folder")
done
mapfile -d '' files < <(find "${folders[@]}" \( -name '*.h' -o -name '*.cc' -o -name '*.inc' \) -print0)

# All files in one process; its report is cut down to the files' names.
check() {
  local report
  report=$(clang-format-14 --dry-run --Werror "${files[@]}" 2>&1) && return
  sed -n 's/^\([^: ]*\):[0-9]*:[0-9]*: error: .*/not formatted (run tools\/format.sh): \1/p' <<<"$report" | sort -u
  return 1
}

case "${1:-}" in
  "") clang-format-14 -i "${files[@]}" ;;
  --check) check ;;
  *) echo "format: unknown option '$1'; the only one is --check" >&2; exit 2 ;;
esac
