// Lower bound of the memory of a run, and a check of it before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/plan/run_plan.h"
#include "weft/mesh/bootstrap.h"
#include "weft/nn/llama_config.h"

namespace weft {

// Bytes of one rank. The bound leaves out scratch of attention, images that are gathered ahead, and the
// program itself.
struct MemoryNeed {
  int64_t weights = 0;    // fp32 master weights of the rank's shards.
  int64_t gradients = 0;  // fp32 gradients of the same elements.
  int64_t moments = 0;    // States of the optimizer in fp32, outside of node memory.
  // Weights (unless ranks read each other's shards in place) and full gradients of the largest group.
  int64_t images = 0;
  int64_t activations = 0;  // Kept from forward to backward in one microbatch, outside of node memory.
  int64_t scratch = 0;      // Logits of the head in fp32, and scratch of products, outside of node memory.

  int64_t total() const { return weights + gradients + moments + images + activations + scratch; }
  int64_t outside_of_node_memory() const { return moments + activations + scratch; }
  // "4.0 GiB of weights, 4.0 GiB of gradients, …".
  std::string ToString() const;
};

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Pure. Elements of the largest group that is gathered as one: a block, or the embedding and the head.
int64_t LargestGroup(const LlamaConfig& model);

// Pure. Shapes of the matrices of a decoder layer that Muon updates: those that IsHiddenMatrix selects.
std::vector<Shape> HiddenMatricesOfLayer(const LlamaConfig& model);

// Pure. Elements of the trained parameters, and of all states of the optimizer, over the ranks of a replica.
int64_t TrainedElements(const LlamaConfig& model, const RunPlan& plan);
int64_t StateElements(const LlamaConfig& model, const RunPlan& plan);

// Pure. The largest need of any rank.
MemoryNeed NeedOf(const LlamaConfig& model, const RunPlan& plan);

// Pure. The bytes that the ranks of a node may take of those that are free: nine tenths. The rest is for what
// no formula counts: MPI, page tables, scratch memory of libraries.
constexpr int64_t UsableBytes(int64_t free_bytes) { return free_bytes / 10 * 9; }

// OK if `ranks` ranks of a node fit into the usable part of `available` bytes. Errors: kResourceExhausted
// (gives the figures; `remedies` completes the message).
absl::Status CheckFits(const MemoryNeed& need, int ranks, int64_t available, std::string_view remedies);

// Free bytes of a node, which its ranks share.
struct FreeMemory {
  size_t node_memory;  // That ranks can share, as Bootstrap::FreeNodeMemory.
  size_t host;         // All memory, as AvailableHostMemory.
};

// Pure. The size of each rank's segment of node memory: a share of the free memory that leaves room for
// `need.outside_of_node_memory()`.
size_t SegmentBytes(const FreeMemory& free_memory, size_t ranks, const MemoryNeed& need);
// The same, of the memory that is free now. Errors: those of the system.
absl::StatusOr<size_t> SegmentBytes(const Bootstrap& bootstrap, const MemoryNeed& need);

}  // namespace weft
