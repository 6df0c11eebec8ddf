#!/usr/bin/env bash
# Runs mpirun with the settings for a small machine or a container: more ranks than cores, no binding to cores, root is
# allowed, and no kernel-assisted copies, which containers often forbid.
#
# SIGINT (Ctrl-C) and SIGTERM go to the ranks of this host, which stop all ranks after their step. mpirun itself would kill
# them after a second and return 1. A second signal ends the ranks at once.
set -uo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"

is_rank() { tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | grep -q '^OMPI_COMM_WORLD_RANK='; }

ranks() {
  local child
  for child in $(pgrep -P "$mpirun"); do
    is_rank "$child" && echo "$child"
  done
}

# Before the ranks exist, mpirun gets the signal. After they have ended, it ends by itself.
had_ranks=
stopped_before_ranks=
stop_ranks() {
  local rank
  for rank in $(ranks); do
    kill -TERM "$rank" 2>/dev/null && had_ranks=1
  done
  [[ $had_ranks ]] && return
  stopped_before_ranks=1
  kill -TERM "$mpirun" 2>/dev/null
}

# mpirun waits without a deadline for the daemon of a host that it has lost. The ranks of this host end by themselves.
end_if_ranks_are_gone() {
  local had= gone=0
  while kill -0 "$mpirun" 2>/dev/null && ((gone < 10)); do
    sleep 1
    if [[ $(ranks) ]]; then had=1 gone=0; elif [[ $had ]]; then ((++gone)); fi
  done
  kill -0 "$mpirun" 2>/dev/null || return
  trap '' TERM  # Below, the script ends its watcher.
  echo "mpirun.sh: the ranks of this host have ended, but mpirun waits for another host; ending it" >&2
  kill -KILL "$mpirun"
  exit 86
}

# In a process group of its own, which Ctrl-C does not reach. If this script is killed, mpirun ends as well.
set -m
[[ -t 0 ]] && exec </dev/null  # A background job may not read from the terminal.
setpriv --pdeathsig TERM mpirun --oversubscribe --bind-to none "$@" <&0 &
mpirun=$!
trap stop_ranks INT TERM
end_if_ranks_are_gone &
watcher=$!
until wait "$mpirun"; ! kill -0 "$mpirun" 2>/dev/null; do :; done
wait "$mpirun"
code=$?
{ kill -- -"$watcher"; wait "$watcher"; } 2>/dev/null
(($? != 86)) || exit 86  # The watcher has ended mpirun.
[[ $stopped_before_ranks ]] && code=130
exit "$code"
