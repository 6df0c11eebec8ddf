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
