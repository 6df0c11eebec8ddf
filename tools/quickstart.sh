#!/usr/bin/env bash
# Trains a model from a clean clone: installs missing packages, builds the program, and trains a small Llama on the license
# texts of Debian, with 2 replicas of 2 shards on four MPI ranks.
#
#   tools/quickstart.sh [FLAGS OF weft train...]      flags given here override the script's own; --config is refused
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/script_functions.sh
print_help "$@"

if [[ " $* " == *" --config"[\ =]* ]]; then
  echo "quickstart: the flags of this script would override the file of --config: run build/release/bin/weft train --config FILE" >&2
  exit 2
fi

tools/setup.sh
lock_build "$@"
cmake --preset release
cmake --build --preset release --target weft_program
unlock_build

run=(build/release/bin/weft launch -n 4 --oversubscribe --max-restarts 0 -- train --dp-replicate 2 --dp-shard 2
     --steps 200 --batch-size 8 --lr 0.003 --warmup-steps 10 --lr-schedule cosine)
# For other flags the last value counts. --data uses the paths of all its values, so the default is added only without one.
[[ " $* " == *" --data"[\ =]* ]] || run+=(--data /usr/share/common-licenses)
echo "+ ${run[*]} $*"
exec "${run[@]}" "$@"
