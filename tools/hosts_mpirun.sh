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

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
slots=$(printf ",%s:$ppn" "${hosts[@]}")
command=(mpirun "${options[@]}" -n "$ranks" --host "${slots:1}" --map-by slot --oversubscribe --bind-to none
         --mca plm_rsh_agent "$WEFT_ON_HOST" --mca oob_tcp_if_include "$WEFT_HOST_INTERFACE"
         --mca btl_tcp_if_include "$WEFT_HOST_INTERFACE" "$@")
exec "$WEFT_ON_HOST" "${hosts[0]}" "$(printf '%q ' "${command[@]}")" </dev/null
