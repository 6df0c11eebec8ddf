#!/usr/bin/env bash
# Runs mpirun over emulated hosts. REQUIRES: it is a command of tools/emulated_hosts.sh, which sets WEFT_HOSTS. The first
# RANKS_PER_HOST ranks run on the first host, the next ones on the second, and so on.
#
#   hosts_mpirun.sh [-n RANKS] [--ppn RANKS_PER_HOST] [--timeout SECONDS] PROGRAM [ARGUMENTS...]
#
# The default is 2 ranks per host on all hosts, and no timeout.
set -euo pipefail

ranks=
ppn=2
options=()

fail() { echo "hosts_mpirun: $*" >&2; exit 2; }

while (($#)); do
  case "$1" in
    -n) ranks=$2; shift 2 ;;
    --ppn) ppn=$2; shift 2 ;;
    --timeout) options+=(--timeout "$2"); shift 2 ;;
    -*) fail "unknown option '$1'" ;;
    *) break ;;
  esac
done
(($#)) || fail "no program given"
[[ -n ${WEFT_HOSTS:-} ]] || fail "WEFT_HOSTS is not set: run this script through tools/emulated_hosts.sh"
read -ra hosts <<<"$WEFT_HOSTS"
ranks=${ranks:-$((ppn * ${#hosts[@]}))}
((ranks <= ppn * ${#hosts[@]})) || fail "$ranks ranks do not fit on ${#hosts[@]} hosts with $ppn each"

slots=$(printf ",%s:$ppn" "${hosts[@]}")
command=("$(cd "$(dirname "$0")" && pwd)/mpirun.sh" "${options[@]}" -n "$ranks" --host "${slots:1}" --map-by slot
         --mca plm_rsh_agent "$WEFT_ON_HOST" --mca oob_tcp_if_include "$WEFT_HOST_INTERFACE" "$@")
exec "$WEFT_ON_HOST" "${hosts[0]}" "$(printf '%q ' "${command[@]}")" </dev/null
