#!/usr/bin/env bash
# Checks Clang's thread-safety annotations: every access to a guarded member holds the lock that the annotation names.
# GCC ignores the annotations, so clang reads the sources that have guarded members, or include a header that has some, without
# compiling them.
#
#   check_thread_safety.sh ROOT
#
# Exit code: 0 if all accesses hold their locks, 77 (skipped) without clang++-14, others for errors.
set -euo pipefail
cd "$1"

if ! command -v clang++-14 >/dev/null; then
  echo "clang++-14 is not installed (tools/setup.sh --dev)"
  exit 77
fi

folders=()
for folder in include src sharding context_parallel; do
  [[ -d $folder ]] && folders+=("$folder")
done
mapfile -t guarded < <(grep -rl 'ABSL_GUARDED_BY' "${folders[@]}" --include='*.h' --include='*.cc')
includes=()
for file in "${guarded[@]}"; do
  [[ $file == *.h ]] && includes+=(-e "#include \"${file#include/}\"")
done
mapfile -t sources < <({
  printf '%s\n' "${guarded[@]}" | grep '\.cc$'
  ((${#includes[@]} == 0)) || grep -rlF "${includes[@]}" "${folders[@]}" --include='*.cc'
} | sort -u)

mpi=()
# Open MPI's compiler has --showme:compile, MPICH's has -compile_info, which begins with the name of the compiler.
if command -v mpicxx >/dev/null; then
  flags=$(mpicxx --showme:compile 2>/dev/null || mpicxx -compile_info 2>/dev/null | cut -d' ' -f2-) || true
  read -ra mpi <<<"$flags" || true
fi
if ! echo '#include <mpi.h>' | clang++-14 "${mpi[@]}" -x c++ -fsyntax-only - 2>/dev/null; then
  echo "check_thread_safety.sh: sources in src/mesh/mpi are not checked: there is no mpi.h"
  mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v '^src/mesh/mpi/')
fi
clang=(clang++-14 -std=c++20 -I. -Iinclude "${mpi[@]}" -Wthread-safety -Werror=thread-safety)
precompiled=$(mktemp -d)
trap 'rm -rf "$precompiled"' EXIT
# Headers of libraries take most of the time. Those that at least five sources include are read once.
{ grep -h '^#include <\(absl/.*\|[a-z_]*\)>' "${sources[@]}" || true; } | sort | uniq -c | awk '$1 >= 5 {print $2, $3}' >"$precompiled/headers.h"
"${clang[@]}" -x c++-header "$precompiled/headers.h" -o "$precompiled/headers.pch"
printf '%s\0' "${sources[@]}" |
  xargs -0 -n 1 -P "$(nproc)" "${clang[@]}" -include-pch "$precompiled/headers.pch" -fsyntax-only
