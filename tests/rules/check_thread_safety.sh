#!/usr/bin/env bash
# Checks Clang's thread-safety annotations: every access to a guarded member holds the lock that the annotation names.
# GCC ignores the annotations, so clang reads the sources of the engine without compiling them.
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

find src/comm/engine -name '*.cc' -print0 |
  xargs -0 -n 1 -P "$(nproc)" clang++-14 -std=c++20 -I. -Iinclude -fsyntax-only -Wthread-safety -Werror=thread-safety
