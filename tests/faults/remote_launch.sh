# Start of weft launch on the first of some emulated hosts, for scripts that are commands of tools/emulated_hosts.sh. A process beside
# the launch runs the commands for other hosts, as sshd would.
# Sets `hosts`, and `output`, the file for the output of the launch.
read -ra hosts <<<"$WEFT_HOSTS"
output=$(mktemp)
remote_shell=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/remote_shell.py

# start_launch SLOTS WEFT [FLAGS OF weft launch...] -- train [FLAGS...]: sets `job`. SLOTS is the value of --host.
start_launch() {
  local slots=$1 weft=$2 agent=$output.agent
  shift 2
  "$remote_shell" serve "$output.socket" &
  server=$!
  printf '#!/bin/sh\nexec "%s" run "%s" "%s" "$@"\n' "$remote_shell" "$output.socket" "$WEFT_ON_HOST" >"$agent"
  chmod +x "$agent"
  local command=("$weft" launch --host "$slots" --mca plm_rsh_agent "$agent"
                 --mca oob_tcp_if_include "$WEFT_HOST_INTERFACE" "$@")
  "$WEFT_ON_HOST" "${hosts[0]}" "$(printf '%q ' "${command[@]}")" </dev/null >"$output" 2>&1 &
  job=$!
}

wait_for_step() {
  until grep -q "^step $1/" "$output" || ! kill -0 "$job" 2>/dev/null; do sleep 0.05; done
}

left() {
  local host pid
  for host in "${hosts[@]}"; do
    for pid in $(ip netns pids "$host"); do echo "left on $host: $(tr '\0' ' ' <"/proc/$pid/cmdline")"; done
    find /dev/shm "$TMPDIR" -name "*$host*" -printf "left of $host: %p\n"
  done 2>/dev/null
}

# Waits for the end of the launch. Prints its output, and what is left on the hosts after $1 seconds: processes, and files in
# /dev/shm. Exits with its code.
end_launch() {
  local code second
  wait "$job"
  code=$?
  cat "$output"
  for ((second = 0; second < $1; ++second)); do
    [[ -n $(left) ]] || break
    sleep 1
  done
  left
  kill "$server"
  rm -f "$output"*
  exit "$code"
}
