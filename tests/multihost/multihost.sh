#!/usr/bin/env bash
# Runs an MPI program on two emulated hosts of this machine: network namespaces joined by a virtual cable, each with a
# host name of its own, so that Open MPI starts a daemon on either and takes them for two nodes that share no memory.
# Everything is removed at the end; what a run that was killed has left is removed by the next.
#
#   multihost.sh [-n RANKS] [--ppn RANKS_PER_HOST] [--rate RATE] [--timeout SECONDS] PROGRAM [ARGUMENTS...]
#
# RATE limits the cable in either direction, as tc writes it ("1gbit"). The default is no limit, 4 ranks, 2 a host, 240
# seconds. Exits as mpirun does; with 77, and a reason, where such hosts cannot be made.
set -euo pipefail

ranks=4
ppn=2
rate=
timeout=240
hosts=("weft-$$-0" "weft-$$-1")
addresses=(10.213.0.1 10.213.0.2)
scratch=

fail() { echo "multihost: $*" >&2; exit 2; }
skip() { echo "multihost: skipped: $*"; exit 77; }

parse() {
  while (($#)); do
    case "$1" in
      -n) ranks=$2; shift 2 ;;
      --ppn) ppn=$2; shift 2 ;;
      --rate) rate=$2; shift 2 ;;
      --timeout) timeout=$2; shift 2 ;;
      -*) fail "unknown option '$1'" ;;
      *) break ;;
    esac
  done
  (($#)) || fail "no program given"
  ((ranks <= 2 * ppn)) || fail "$ranks ranks do not fit on 2 hosts with $ppn each"
  program=("$@")
}

check_machine() {
  ((EUID == 0)) || skip "network namespaces need root"
  local tool
  for tool in ip tc unshare; do
    command -v "$tool" >/dev/null || skip "there is no '$tool' (packages iproute2, util-linux)"
  done
  unshare --uts true 2>/dev/null || skip "this machine does not allow UTS namespaces"
  ip netns add "${hosts[0]}" 2>/dev/null || skip "this machine does not allow network namespaces"
}

# The cable goes with its ends; shared memory of ranks that were killed would stay.
remove_host() {
  ip netns pids "$1" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
  ip netns delete "$1" 2>/dev/null || true
  rm -f /dev/shm/*."$1".*
}

remove_own() {
  local host
  for host in "${hosts[@]}"; do remove_host "$host"; done
  [[ -z $scratch ]] || rm -rf "$scratch"
}

# A host's name holds the process id of the script that made it.
remove_abandoned() {
  local host owner
  for host in $(ip netns list 2>/dev/null | sed -n 's/^\(weft-[0-9]*-[01]\).*/\1/p'); do
    owner=${host#weft-}
    [[ -e /proc/${owner%-*} ]] || remove_host "$host"
  done
}

make_hosts() {
  ip netns add "${hosts[1]}"
  ip link add weft0 netns "${hosts[0]}" type veth peer name weft0 netns "${hosts[1]}" 2>/dev/null ||
    skip "this machine does not allow virtual cables (veth)"
  local i
  for i in 0 1; do
    ip -n "${hosts[i]}" link set lo up
    ip -n "${hosts[i]}" address add "${addresses[i]}/24" dev weft0
    ip -n "${hosts[i]}" link set weft0 up
    [[ -z $rate ]] || tc -n "${hosts[i]}" qdisc add dev weft0 root tbf rate "$rate" burst 128k latency 50ms ||
      fail "tc cannot limit the cable to '$rate'"
  done
}

# Open MPI's remote shell: `on-host HOST COMMAND...` joins the host's network under the host's name.
write_remote_shell() {
  cat >"$scratch/on-host" <<'SHELL'
#!/usr/bin/env bash
host=$1; shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && eval "exec $*"' "$host" "$@"
SHELL
  chmod +x "$scratch/on-host"
}

run() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  export TMPDIR=$scratch  # For Open MPI's session folders.
  local command=(mpirun --timeout "$timeout" -n "$ranks" --host "${hosts[0]}:$ppn,${hosts[1]}:$ppn" --map-by slot
                 --oversubscribe --bind-to none --mca plm_rsh_agent "$scratch/on-host" --mca oob_tcp_if_include weft0
                 --mca btl_tcp_if_include weft0 "${program[@]}")
  # In the background: bash minds signals while it waits, but not while a command runs in front.
  "$scratch/on-host" "${hosts[0]}" "$(printf '%q ' "${command[@]}")" </dev/null &
  wait $!
}

main() {
  parse "$@"
  trap remove_own EXIT
  trap 'exit 130' INT TERM HUP
  check_machine
  remove_abandoned
  make_hosts
  scratch=$(mktemp -d)
  write_remote_shell
  run
}

main "$@"
