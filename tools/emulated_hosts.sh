#!/usr/bin/env bash
# Runs a command with emulated hosts: network namespaces of this machine, joined by a switch. Each has its own host name, so
# that Open MPI starts a daemon on each and treats them as nodes without shared memory. The script removes all of them when
# the command ends. SIGINT, SIGTERM and SIGHUP end the command, by SIGTERM. If the script is killed, the next run removes the
# hosts.
#
#   emulated_hosts.sh [--hosts COUNT] [--rate RATE] COMMAND [ARGUMENTS...]
#
# RATE limits the link of each host in either direction, in the notation of tc ("1gbit"). The defaults are no limit and 2
# hosts. The command runs outside of the hosts, with these variables in its environment:
#
#   WEFT_HOSTS            the names of the hosts
#   WEFT_ON_HOST          a program: `$WEFT_ON_HOST HOST COMMAND...` joins the host's network under the host's name
#   WEFT_HOST_INTERFACE   the network interface in every host
#
# TMPDIR names a temporary folder, which is removed at the end. The exit code is that of the command. It is 77 (skipped) if
# such hosts cannot be created; the script then prints the reason.
set -euo pipefail

count=2
rate=
interface=weft0
switch=weft-$$-switch
hosts=()
scratch=
runs_command=  # Not empty while the command runs.

fail() { echo "emulated_hosts: $*" >&2; exit 2; }
skip() { echo "emulated_hosts: skipped: $*"; exit 77; }

parse() {
  while (($#)); do
    case "$1" in
      --hosts) count=$2; shift 2 ;;
      --rate) rate=$2; shift 2 ;;
      -*) fail "unknown option '$1'" ;;
      *) break ;;
    esac
  done
  (($#)) || fail "no command given"
  [[ $count =~ ^[0-9]+$ ]] && ((count >= 2 && count <= 64)) || fail "--hosts $count is not a number from 2 to 64"
  command=("$@")
  local i
  for ((i = 0; i < count; ++i)); do hosts+=("weft-$$-$i"); done
}

check_machine() {
  ((EUID == 0)) || skip "network namespaces need root"
  local tool
  for tool in ip tc unshare; do
    command -v "$tool" >/dev/null || skip "there is no '$tool' (packages iproute2, util-linux)"
  done
  unshare --uts true 2>/dev/null || skip "this machine does not allow UTS namespaces"
  ip netns add "$switch" 2>/dev/null || skip "this machine does not allow network namespaces"
}

# Deleting a namespace deletes its links. Ranks that are killed leave their shared memory behind.
remove_host() {
  ip netns pids "$1" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
  ip netns delete "$1" 2>/dev/null || true
  rm -f /dev/shm/*."$1".*
}

# Ends the command, by SIGKILL if it has not ended after ten seconds.
end_command() {
  local process=$! _
  kill "$process" 2>/dev/null || return 0
  for _ in {1..100}; do
    kill -0 "$process" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$process" 2>/dev/null || true
}

remove_own() {
  trap '' INT TERM HUP  # A second signal must not end the removal.
  # A signal may come right after the start of the command: $! is set then, and a variable would not be.
  [[ -z $runs_command || -z ${!-} ]] || end_command
  local host
  for host in "${hosts[@]}" "$switch"; do remove_host "$host"; done
  [[ -z $scratch ]] || rm -rf "$scratch"
}

# The name of a host contains the process id of the script that made it.
remove_abandoned() {
  local host owner
  for host in $(ip netns list 2>/dev/null | sed -n 's/^\(weft-[0-9]*-[a-z0-9]*\).*/\1/p'); do
    owner=${host#weft-}
    [[ -e /proc/${owner%%-*} ]] || remove_host "$host"
  done
}

limit() {
  [[ -z $rate ]] || tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst 128k latency 50ms ||
    fail "tc cannot limit a link to '$rate'"
}

make_host() {
  local host=$1 number=$2
  ip netns add "$host"
  ip link add "$interface" netns "$host" type veth peer name "port$number" netns "$switch" 2>/dev/null ||
    skip "this machine does not allow virtual links (veth)"
  ip -n "$host" link set lo up
  ip -n "$host" address add "10.213.0.$((number + 1))/24" dev "$interface"
  ip -n "$host" link set "$interface" up
  ip -n "$switch" link set "port$number" master switch up
  limit "$host" "$interface"
  limit "$switch" "port$number"
}

make_hosts() {
  ip -n "$switch" link add switch type bridge 2>/dev/null || skip "this machine does not allow virtual switches (bridge)"
  ip -n "$switch" link set switch up
  local i
  for i in "${!hosts[@]}"; do make_host "${hosts[i]}" "$i"; done
}

write_on_host() {
  cat >"$scratch/on-host" <<'SHELL'
#!/usr/bin/env bash
host=$1; shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && eval "exec $*"' "$host" "$@"
SHELL
  chmod +x "$scratch/on-host"
}

run() {
  export WEFT_HOSTS="${hosts[*]}" WEFT_ON_HOST=$scratch/on-host WEFT_HOST_INTERFACE=$interface TMPDIR=$scratch
  # In the background: bash handles signals while it waits, but not while a foreground command runs.
  runs_command=yes
  "${command[@]}" <&0 &
  local code=0
  wait "$!" || code=$?
  runs_command=
  return "$code"
}

main() {
  parse "$@"
  trap remove_own EXIT
  trap 'exit 130' INT TERM HUP
  check_machine
  remove_abandoned
  scratch=$(mktemp -d)
  make_hosts
  write_on_host
  run
}

main "$@"
