#!/usr/bin/env bash
# Installs the packages that weft needs on Debian 12, and changes nothing else. It needs neither root nor a network if all
# of them are installed.
#
#   tools/setup.sh          packages to build, run and test
#   tools/setup.sh --dev    also the formatter, the linter, the fuzzer and the tool for coverage
#   tools/setup.sh --slurm  also Slurm, for tests/slurm; Debian starts its services, if they are configured
#   tools/setup.sh --mpich  also MPICH, for the preset mpich; mpirun remains Open MPI's
#
# Several options may be given.
set -euo pipefail

build=(g++ cmake ninja-build ccache libopenmpi-dev libabsl-dev libeigen3-dev libdnnl-dev libhwloc-dev libcli11-dev
       nlohmann-json3-dev libxxhash-dev)
run=(openmpi-bin openssh-client)
test=(libgtest-dev libgmock-dev libbenchmark-dev python3 python3-dev python3-venv iproute2 procps)
slurm=(slurm-wlm munge)
mpich=(mpich libmpich-dev)
dev=(clang-format-14 clang-tidy-14 clang-14 libclang-rt-14-dev gcovr)

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0"; }

fail() {
  echo "setup: $*" >&2
  exit 1
}

# The named packages that are not installed.
missing_of() {
  local installed
  installed=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
              sed -n 's/^installed //p') || true
  comm -23 <(printf '%s\n' "$@" | sort -u) <(sort -u <<<"$installed")
}

main() {
  local wanted=("${build[@]}" "${run[@]}" "${test[@]}") option
  for option in "$@"; do
    case "$option" in
      --dev) wanted+=("${dev[@]}") ;;
      --slurm) wanted+=("${slurm[@]}") ;;
      --mpich) wanted+=("${mpich[@]}") ;;
      -h | --help) usage; exit 0 ;;
      *) fail "unknown option '$option'; the options are --dev, --slurm and --mpich" ;;
    esac
  done
  command -v dpkg-query >/dev/null ||
    fail "this is not Debian (no dpkg-query); install the equivalents of: ${wanted[*]}"

  local missing
  mapfile -t missing < <(missing_of "${wanted[@]}")
  if ((${#missing[@]} == 0)); then
    echo "setup: all ${#wanted[@]} packages are installed"
    return
  fi

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "run this as root (there is no sudo) to install: ${missing[*]}"
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q </dev/null || fail "apt-get update failed: is there a network?"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}" </dev/null ||
    fail "apt-get could not install: ${missing[*]}"
  echo "setup: done"
}

main "$@"
