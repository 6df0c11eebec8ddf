#!/usr/bin/env bash
# Runs weft launch on two emulated hosts, one rank on each, and cuts the link of the second host after the third step.
# REQUIRES: it is a command of tools/emulated_hosts.sh.
#
#   cut_link.sh SECONDS WEFT [FLAGS OF weft launch...] -- train [FLAGS...]
#
# SECONDS is `ever`, or the time after which the link works again. The exit code is that of weft launch. Prints what is left on
# the hosts: processes, and files in /dev/shm. The daemon of a lost host ends a minute after its rank.
set -uo pipefail
source "$(dirname "$0")/remote_launch.sh"
seconds=$1
start_launch "${hosts[0]}:1,${hosts[1]}:1" "${@:2}"
wait_for_step 3
link() { "$WEFT_ON_HOST" "${hosts[1]}" ip link set "$WEFT_HOST_INTERFACE" "$1"; }
link down
echo "the link is down"
if [[ $seconds != ever ]]; then
  sleep "$seconds"
  link up
  echo "the link is up"
fi
end_launch 90
