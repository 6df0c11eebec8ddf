#!/usr/bin/env bash
# Runs weft launch on two emulated hosts, one rank on each, and cuts the link of the second host after the third step.
# REQUIRES: it is a command of tools/emulated_hosts.sh.
#
#   cut_link.sh SECONDS WEFT [FLAGS OF weft launch...] -- train [FLAGS...]
#
# SECONDS is `ever`, or the time after which the link works again. The exit code is that of weft launch. Prints what is left on
# the hosts: processes, and files in /dev/shm. The daemon of a lost host ends a minute after its rank.
set -uo pipefail
seconds=$1 weft=$2
shift 2
read -ra hosts <<<"$WEFT_HOSTS"
here=$(cd "$(dirname "$0")" && pwd)
output=$(mktemp)

# The agent has the command of the second host run by a process beside the launch, as sshd would be.
"$here/remote_shell.py" serve "$output.socket" &
server=$!
agent=$output.agent
printf '#!/bin/sh\nexec "%s" run "%s" "%s" "$@"\n' "$here/remote_shell.py" "$output.socket" "$WEFT_ON_HOST" >"$agent"
chmod +x "$agent"

command=("$weft" launch --host "${hosts[0]}:1,${hosts[1]}:1" --mca plm_rsh_agent "$agent"
         --mca oob_tcp_if_include "$WEFT_HOST_INTERFACE" --mca btl_tcp_if_include "$WEFT_HOST_INTERFACE" "$@")
"$WEFT_ON_HOST" "${hosts[0]}" "$(printf '%q ' "${command[@]}")" </dev/null >"$output" 2>&1 &
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

left() {
  local host pid
  for host in "${hosts[@]}"; do
    for pid in $(ip netns pids "$host"); do echo "left on $host: $(tr '\0' ' ' <"/proc/$pid/cmdline")"; done
    find /dev/shm "$TMPDIR" -name "*$host*" -printf "left of $host: %p\n"
  done 2>/dev/null
}
for ((second = 0; second < 90; ++second)); do
  [[ -n $(left) ]] || break
  sleep 1
done
left
kill "$server"
rm -f "$output"*
exit "$code"
