#!/usr/bin/env bash
# Runs a program on two emulated hosts, one rank on each, and cuts the link of the second host after the third step.
# REQUIRES: it is a command of tools/emulated_hosts.sh.
#
#   cut_link.sh SECONDS PROGRAM [ARGUMENTS...]     SECONDS is `ever`, or the time after which the link works again
set -uo pipefail
seconds=$1
shift
read -ra hosts <<<"$WEFT_HOSTS"
output=$(mktemp)
"$(dirname "$0")/../../tools/hosts_mpirun.sh" --ppn 1 "$@" >"$output" 2>&1 &
job=$!
until grep -q '^step 3/' "$output" || ! kill -0 "$job" 2>/dev/null; do sleep 0.05; done
link() { "$WEFT_ON_HOST" "${hosts[1]}" ip link set "$WEFT_HOST_INTERFACE" "$1"; }
link down
echo "the link is down"
if [[ $seconds != ever ]]; then
  sleep "$seconds"
  link up
  echo "the link is up"
fi
wait "$job"
code=$?
cat "$output"
rm -f "$output"
exit "$code"
