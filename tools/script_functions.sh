# Functions of the scripts in tools/, which source this file from the root of the tree.

# Prints the comment at the top of the script and ends it, if an argument asks for that: print_help "$@".
print_help() {
  local argument
  for argument; do
    if [[ $argument == -h || $argument == --help ]]; then
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "tools/$(basename "$0")"
      exit 0
    fi
  done
}

# Takes the lock of the tree's builds and their results until this process and those that it has started end. If another script has
# it, ends the script with exit code 2: lock_build "$@".
lock_build() {
  local file=build/scripts.lock
  mkdir -p build
  exec {build_lock}>>"$file"
  if ! flock --nonblock "$build_lock"; then
    echo "$(basename "$0"): $(<"$file") uses build/ of this tree: wait for its end, or work in another clone" >&2
    exit 2
  fi
  echo "tools/$(basename "$0")${*:+ $*} (process $$)" >"$file"
}

unlock_build() { exec {build_lock}>&-; }
