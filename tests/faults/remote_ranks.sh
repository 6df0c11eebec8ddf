#!/usr/bin/env bash
# Runs weft launch on an emulated host, with its ranks on two others, and stops it by SIGTERM.
# REQUIRES: it is a command of tools/emulated_hosts.sh --hosts 3.
#
#   remote_ranks.sh SECONDS WEFT [FLAGS OF weft launch...] -- train [FLAGS...]
#
# The signal comes SECONDS after the third step. The exit code is that of weft launch. Prints what is left on the hosts.
set -uo pipefail
source "$(dirname "$0")/remote_launch.sh"
start_launch "${hosts[1]}:1,${hosts[2]}:1" "${@:2}"
wait_for_step 3
sleep "$1"
for pid in $(ip netns pids "${hosts[0]}"); do
  [[ $(readlink "/proc/$pid/exe") != */weft ]] || kill -TERM "$pid"
done
end_launch 10
