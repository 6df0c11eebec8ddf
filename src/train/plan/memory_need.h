// Memory need of a run, and the check of it: `weft train` starts with it, and `weft plan` judges meshes by
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/plan/activation_bytes.h"
#include "src/train/plan/run_plan.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/share_domain.h"
#include "weft/nn/llama.h"
#include "weft/sharding/group_members.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"

namespace weft {

// Bytes of one rank: the most that it may hold in a step, whatever the times of ranks. The memory of the
// engine is an estimate; that of attention over split sequences is an upper bound.
struct MemoryNeed {
  // Node memory.
  int64_t weights = 0;  // fp32 master weights of the rank's shards.
  // Reduced gradients, partial sums, and outputs of reductions under way; 0 if these lie among the full
  // gradients.
  int64_t gradients = 0;
  int64_t images = 0;          // Gathered weights, and casts of the rank's shards that peers read.
  int64_t full_gradients = 0;  // Gradients of whole groups, until they are reduced.
  int64_t exchanges = 0;       // Buffers of attention over split sequences, of Muon, and of the engine.
  // Other memory.
  int64_t moments = 0;    // States of the optimizer in fp32.
  int64_t snapshots = 0;  // Copies of values that a save has not written before an update.
  int64_t key_value_cache = 0;
  int64_t activations = 0;  // Those of one microbatch from forward to backward, and of the block that runs.
  int64_t scratch = 0;      // Logits of the head in fp32, and scratch of products.
  int64_t program = 0;      // Code, libraries and tables.

  int64_t node_memory() const { return weights + gradients + images + full_gradients + exchanges; }
  int64_t outside_of_node_memory() const {
    return moments + snapshots + key_value_cache + activations + scratch + program;
  }
  int64_t total() const { return node_memory() + outside_of_node_memory(); }
  // "4.0 GiB of weights, 4.0 GiB of gradients, …", without parts that are 0.
  std::string ToString() const;
};

// Pure. Elements of the largest group that is gathered as one: a block, or the embedding and the head.
int64_t LargestGroup(const LlamaConfig& model);

// Pure. Bytes of the matrices that a rank of Muon collects ahead, transforms, and sends back: see
// MatrixExchange. 0 if the shard group has one rank: matrices are whole there.
int64_t CollectedMatrixBytes(const LlamaConfig& model, const RunPlan& plan);

// The groups that FullyShard makes of the model with its adapters: the root's, then those of its units.
std::vector<GroupMembers> GroupMembersOf(LlamaModel& model);

// Pure. Elements of the trained parameters, and of all states of the optimizer, over the ranks of a replica.
int64_t TrainedElements(const LlamaConfig& model, const RunPlan& plan);
int64_t StateElements(const LlamaConfig& model, const RunPlan& plan);

// The need of rank 0, which no other rank exceeds by more than padding. REQUIRES: `model` has the adapters of
// the plan; no part of it is sharded yet.
MemoryNeed NeedOf(LlamaModel& model, const RunPlan& plan);

// The need of a rank of one shard group that runs forwards only: its shard, gathered and cast weights, the
// engine and the program. A caller adds its activations and key-value cache. REQUIRES: no parameter requires
// a gradient; no part of the model is sharded yet.
MemoryNeed NeedOfForward(LlamaModel& model, const ShardingPolicy& policy, const ShareDomains& domains,
                         Residency residency, int shard_size);

// Pure. The bytes that the ranks of a node may take of those that are free: nine tenths. The rest is for what
// no formula counts: MPI, page tables, scratch memory of libraries.
constexpr int64_t UsableBytes(int64_t free_bytes) { return free_bytes / 10 * 9; }

// Completes the message of CheckFits for a run.
inline constexpr std::string_view kMemoryRemedies =
    ": shard over more ranks on further hosts (--dp-shard), or use --activation-checkpoint full, a smaller "
    "--batch-size, a larger --grad-accum, or a smaller --seq-len";

// OK if `ranks` ranks of a node fit into the usable part of `available` bytes. Errors: kResourceExhausted
// (gives the figures; `remedies` completes the message).
absl::Status CheckFits(const MemoryNeed& need, int ranks, int64_t available, std::string_view remedies);

// Pure. The size of each rank's segment of node memory: a share of the free memory that leaves room for
// `need.outside_of_node_memory()`. Where addresses are limited, it also leaves half of those that the ranks
// do not need, for stacks of threads and arenas of malloc.
size_t SegmentBytes(const FreeMemory& free_memory, size_t ranks, const MemoryNeed& need);
// The same, of the memory that is free now. Errors: those of the system.
absl::StatusOr<size_t> SegmentBytes(const Bootstrap& bootstrap, const MemoryNeed& need);

}  // namespace weft
