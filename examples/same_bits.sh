#!/usr/bin/env bash
# Trains the same model on four ranks with 36 settings (three meshes, zero copy on and off, three prefetch depths, resharding
# on and off) and prints the hash of the final weights of each run. The last line is the number of distinct hashes. Exits
# with 1 unless it is 1.
#
#   examples/same_bits.sh [WEFT]          WEFT: path of the program; default build/release/bin/weft
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weft=${1:-$root/build/release/bin/weft}
command -v "$weft" >/dev/null || { echo "same_bits: cannot run $weft: build it, or give another path" >&2; exit 2; }

# Four ranks divide neither the heads, nor --ffn-dim, nor --vocab-size.
model=(--layers 2 --dim 60 --heads 5 --kv-heads 5 --ffn-dim 101 --vocab-size 131 --seq-len 32)
run=(--steps 5 --batch-size 4 --lr 3e-3 --data "$root/LICENSE")

train() {  # replicate, shard, zero copy, prefetch, reshard
  "$root/tools/mpirun.sh" -n 4 "$weft" train --dp-replicate "$1" --dp-shard "$2" --zero-copy "$3" --prefetch-depth "$4" \
    --reshard-after-forward "$5" "${model[@]}" "${run[@]}" | sed -n 's/^weights //p'
}

hashes=()
printf '%-5s %-10s %-9s %-9s %-8s %s\n' mesh sharding zero-copy prefetch reshard weights
for mesh in "1 4 FSDP" "2 2 HSDP" "4 1 DDP"; do
  read -r replicate shard name <<<"$mesh"
  for zero_copy in true false; do
    for prefetch in 0 1 2; do
      for reshard in true false; do
        hash=$(train "$replicate" "$shard" "$zero_copy" "$prefetch" "$reshard")
        hashes+=("$hash")
        printf '%-5s %-10s %-9s %-9s %-8s %s\n' "${replicate}x${shard}" "$name" "$zero_copy" "$prefetch" "$reshard" "$hash"
      done
    done
  done
done
distinct=$(printf '%s\n' "${hashes[@]}" | sort -u | wc -l)
echo "${#hashes[@]} runs, $distinct distinct"
[[ $distinct == 1 && -n ${hashes[0]} ]]
