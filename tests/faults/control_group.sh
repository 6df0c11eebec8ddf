#!/usr/bin/env bash
# Runs a command in a control group of its own whose memory is limited.
#
#   control_group.sh BYTES COMMAND...
#
# Exit code: that of the command, or 77 (skipped, with the reason) if no such group can be created.
set -uo pipefail
limit=$1
shift

skip() { echo "skipped: $*"; exit 77; }

# Prints "<folder of this process's group> <name of the file with the limit>", for either version of control groups.
own_group() {
  local mount path
  mount=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ {print $2; exit}' /proc/mounts)
  if [[ $mount ]]; then
    path=$(awk -F: '$2 ~ /(^|,)memory(,|$)/ {print $3}' /proc/self/cgroup)
    echo "$mount$path memory.limit_in_bytes"
    return
  fi
  mount=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
  [[ $mount ]] || return
  path=$(awk -F: '$1 == "0" {print $3}' /proc/self/cgroup)
  echo "$mount${path%/} memory.max"
}

read -r parent limit_file < <(own_group)
[[ ${parent:-} ]] || skip "no control groups for memory are mounted"
group=$parent/weft-faults-$$
mkdir "$group" 2>/dev/null || skip "cannot create the control group $group"
trap 'rmdir "$group"' EXIT
echo "$limit" 2>/dev/null >"$group/$limit_file" || skip "cannot limit the memory of the control group $group"

(
  echo "$BASHPID" >"$group/cgroup.procs" && exec "$@"
)
code=$?
for _ in {1..50}; do  # Helpers of mpirun end shortly after it.
  [[ $(<"$group/cgroup.procs") ]] || break
  sleep 0.1
done
exit "$code"
