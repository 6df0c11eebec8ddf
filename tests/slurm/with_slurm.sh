#!/usr/bin/env bash
# Runs a command with a Slurm of its own: one node, this machine, with slots for 4 tasks and its own munge, configuration and state
# in a temporary folder. The script ends the daemons and removes the folder when the command ends, also after SIGINT, SIGTERM or
# SIGHUP. A Slurm of this machine is not touched.
#
#   with_slurm.sh COMMAND [ARGUMENTS...]
#
# SLURM_CONF names the configuration, so that sbatch, srun and scontrol use this Slurm. WEFT_SLURM_LOGS names the folder of the
# daemons' logs. The exit code is that of the command. It is 77 (skipped) without root or without Slurm's packages
# (tools/setup.sh --slurm); the script then prints the reason.
set -euo pipefail

slots=4
daemons=()
folder=

fail() { echo "with_slurm: $*" >&2; exit 2; }
skip() { echo "with_slurm: skipped: $*"; exit 77; }

check_machine() {
  ((EUID == 0)) || skip "the daemons of Slurm need root"
  local tool
  for tool in munged slurmctld slurmd sbatch srun; do
    PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || skip "there is no '$tool': run tools/setup.sh --slurm"
  done
}

remove_all() {
  local daemon
  for daemon in "${daemons[@]}"; do kill "$daemon" 2>/dev/null || true; done
  for daemon in "${daemons[@]}"; do wait "$daemon" 2>/dev/null || true; done
  [[ -z $folder ]] || rm -rf "$folder"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }

write_configuration() {
  local host
  host=$(hostname -s)
  mkdir "$folder"/{munge,state,spool,logs}
  chmod 755 "$folder" "$folder/munge"
  dd if=/dev/urandom of="$folder/munge/key" bs=1024 count=1 status=none
  chmod 400 "$folder/munge/key"
  cat >"$folder/slurm.conf" <<CONF
ClusterName=weft
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job starts again when its old credentials have expired.
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/logs/slurmctld
SlurmdLogFile=$folder/logs/slurmd
# Containers have neither systemd nor control groups that Slurm could use.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=$host NodeAddr=127.0.0.1 CPUs=$slots State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
  echo "CgroupAutomount=no" >"$folder/cgroup.conf"
}

# wait_until SECONDS WHAT COMMAND...
wait_until() {
  local what=$2 now deadline
  read -r now _ </proc/uptime
  deadline=$((${now%.*} + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    read -r now _ </proc/uptime
    ((${now%.*} < deadline)) || { tail -n 5 "$folder"/logs/* >&2; fail "$what is not ready in time"; }
    sleep 0.2
  done
}

node_is_idle() { [[ $(sinfo --noheader --format=%t) == idle ]]; }

start() {
  export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin WEFT_SLURM_LOGS=$folder/logs
  munged --foreground --socket "$folder/munge/socket" --key-file "$folder/munge/key" --pid-file "$folder/munge/pid" \
         --log-file "$folder/logs/munged" --seed-file "$folder/munge/seed" --force 2>"$folder/logs/munged.err" &
  daemons+=($!)
  wait_until 20 munged munge --socket "$folder/munge/socket" --no-input
  slurmctld -D -f "$SLURM_CONF" >/dev/null 2>&1 &
  daemons+=($!)
  wait_until 20 slurmctld scontrol ping
  slurmd -D -f "$SLURM_CONF" >/dev/null 2>&1 &
  daemons+=($!)
  wait_until 30 slurmd node_is_idle
}

main() {
  (($#)) || fail "no command given"
  check_machine
  trap remove_all EXIT
  trap 'exit 130' INT TERM HUP
  folder=$(mktemp -d)
  write_configuration
  start
  # In the background: bash handles signals while it waits, but not while a foreground command runs.
  "$@" <&0 &
  wait $!
}

main "$@"
