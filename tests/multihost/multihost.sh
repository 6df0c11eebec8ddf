#!/usr/bin/env bash
# Runs an MPI program on two emulated hosts of this machine (see tools/emulated_hosts.sh).
#
#   multihost.sh [-n RANKS] [--ppn RANKS_PER_HOST] [--rate RATE] [--timeout SECONDS] PROGRAM [ARGUMENTS...]
#
# RATE limits the cable in either direction, as tc writes it ("1gbit"). The default is no limit, 4 ranks, 2 a host, 240
# seconds. Exits as mpirun does; with 77, and a reason, where such hosts cannot be made.
set -euo pipefail

tools=$(dirname "${BASH_SOURCE[0]}")/../../tools
rate=()
ranks=4
ppn=2
timeout=240

while (($#)); do
  case "$1" in
    -n) ranks=$2; shift 2 ;;
    --ppn) ppn=$2; shift 2 ;;
    --rate) rate=(--rate "$2"); shift 2 ;;
    --timeout) timeout=$2; shift 2 ;;
    *) break ;;
  esac
done

exec "$tools/emulated_hosts.sh" "${rate[@]}" "$tools/hosts_mpirun.sh" -n "$ranks" --ppn "$ppn" --timeout "$timeout" "$@"
