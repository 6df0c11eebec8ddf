#!/usr/bin/env bash
# Runs a program of several ranks on two emulated hosts of this machine (see tools/emulated_hosts.sh).
#
#   multihost.sh [--store] [-n RANKS] [--ppn RANKS_PER_HOST] [--rate RATE] [--timeout SECONDS] PROGRAM [ARGUMENTS...]
#
# mpirun starts the ranks; with --store, tools/store_ranks.py does. RATE limits the link between the hosts in each direction,
# in the syntax of tc ("1gbit"). Defaults: no limit, 4 ranks, 2 ranks per host, 240 seconds. Exits with the exit code of the
# ranks. If the hosts cannot be created, prints the reason and exits with 77.
set -euo pipefail

tools=$(dirname "${BASH_SOURCE[0]}")/../../tools
rate=()
launcher=hosts_mpirun.sh
ranks=4
ppn=2
timeout=240

while (($#)); do
  case "$1" in
    --store) launcher=store_ranks.py; shift ;;
    -n) ranks=$2; shift 2 ;;
    --ppn) ppn=$2; shift 2 ;;
    --rate) rate=(--rate "$2"); shift 2 ;;
    --timeout) timeout=$2; shift 2 ;;
    *) break ;;
  esac
done

exec "$tools/emulated_hosts.sh" "${rate[@]}" "$tools/$launcher" -n "$ranks" --ppn "$ppn" --timeout "$timeout" "$@"
