// How a model is sharded. Of these options the dtypes and the casts that they bring, the divide factor,
// replicate groups and ignored parameters change results; the others not one bit, only costs.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include <absl/status/status.h>

#include "weft/comm/types.h"
#include "weft/core/dtype.h"
#include "weft/mesh/process_group.h"
#include "weft/nn/parameter.h"

namespace weft {

struct ParameterDTypes {
  // What forward and backward compute with; the sharded master copy is always fp32. f32 or bf16.
  DType param = DType::kF32;
  // What gradients are exchanged in; sums are formed in fp32 either way. f32, bf16 or f16.
  DType reduce = DType::kF32;
  // What backward writes, f32 or bf16. Unset: bf16 only where both others are, else f32.
  std::optional<DType> gradient = std::nullopt;

  DType gradient_dtype() const;
  // Errors: kInvalidArgument (names the option, its value and what is allowed).
  absl::Status Validate() const;
};

// Whether the ranks of a node hold images together instead of one each.
enum class NodeShared : uint8_t {
  kAuto,  // Where they can.
  kOn,    // It is an error where they cannot.
  kOff,
};

// "auto", "on", "off".
std::string_view Name(NodeShared node_shared);

// Exchange of the gradients of a step with several microbatches.
//
//                     reduce-scatters   all-reduces   memory for accumulated gradients
//   kLast             1                 1             full gradients of every group
//   kReduceScatter    each microbatch   1             the rank's shards
//   kEach             each microbatch   each          the rank's shards
enum class GradientSync : uint8_t { kLast, kReduceScatter, kEach };

// "last", "reduce-scatter", "each".
std::string_view Name(GradientSync sync);

struct ShardingPolicy {
  // On: the gathered image is the parameters, and the gradient image is the reduce-scatter's input. Off:
  // every parameter is sharded on a dim of its own, and copied out of and into the collectives' buffers.
  bool zero_copy = true;
  // See ChooseResidency.
  NodeShared node_shared = NodeShared::kAuto;
  // Off: parameters stay unsharded from forward until their backward is over: one gather less, the whole
  // model in memory.
  bool reshard_after_forward = true;
  // More than 1: what is resharded after forward keeps one of so many parts of its image, and backward
  // gathers the others from neighbours of the shard group alone. Divides that group's size. 0: nothing is
  // kept.
  int reshard_after_forward_size = 0;
  // The root's backward begins where its forward ends: resharding it in between only costs a gather.
  bool reshard_root_after_forward = false;
  // Groups that are gathered ahead of the one that computes; 0 gathers each when it is needed. At most
  // kMaxPrefetchDepth. Unset: see ResolvePrefetch; for those who know of no nodes kPrefetchOnANode.
  std::optional<int> prefetch_depth = std::nullopt;
  // See ParameterDTypes.
  DType param_dtype = DType::kF32;
  DType reduce_dtype = DType::kF32;
  // In place of these two, for each parameter; those of one group must agree. Unset: the two for all.
  std::function<ParameterDTypes(const Parameter&)> dtypes_of = nullptr;
  // On: floating-point inputs of a group's module are cast to what the group computes with, and gradients of
  // them back.
  bool cast_forward_inputs = true;
  // What floating-point outputs of the root are cast to. Unset: they stay as they are.
  std::optional<DType> output_dtype = std::nullopt;
  // What summed gradients are divided by, on top of what the loss carries. In f16, a power of two near its
  // root is divided out before the exchange, so that sums do not overflow, and the rest afterwards.
  float gradient_divide_factor = 1.0F;
  // Bounds on what is under way while backward goes on: reduce-scatters, each of which keeps one group's full
  // gradients alive (0: backward waits for each), and all-reduces (at least 1).
  int max_reduce_scatters = 2;
  int max_all_reduces = 2;
  // Without zero_copy: the dim on which a parameter is sharded; negative ones count from the end. Unset: 0.
  std::function<int(const Parameter&)> shard_dim = nullptr;
  // The ranks over which a parameter's gradient is all-reduced, as this rank sees them: all ranks must name
  // the same groups in the same order of parameters. None: it is reduce-scattered only, and whoever
  // replicates it sees to that. Unset: every parameter's replicas are those of the mesh.
  std::function<std::optional<ProcessGroup>(const Parameter&)> replicate_group = nullptr;

  // On: the replicas of a shard update a part of it each, instead of all of it. The all-reduce of gradients
  // becomes a reduce-scatter, and forward gathers what the others have updated: as many bytes, half of them
  // at a time when the wire is idle, and moments and reduced gradients of one part only. There must be
  // replicas.
  bool shard_optimizer_over_replicas = false;

  // How weights and gradients travel between nodes; with the optimizer sharded over replicas and compression,
  // what updates have changed does, for four bytes more an element that a rank updates. It pays where links
  // are slow beside the cores: ChooseWireCompression finds out.
  WireCompression wire_compression = WireCompression::kNone;

  // Parameters that stay with the caller, whole on each rank: never gathered, reduced, clipped or listed
  // among the shards. Unset: none.
  std::function<bool(const Parameter&)> ignored = nullptr;

  static constexpr int kMaxPrefetchDepth = 2;
  static constexpr int kPrefetchOnANode = 1;
  static constexpr int kPrefetchOverNodes = 2;
  int PrefetchDepth() const { return prefetch_depth.value_or(kPrefetchOnANode); }

  // Errors: kInvalidArgument (names the option, its value and what is allowed).
  absl::Status Validate() const;
  ParameterDTypes DTypesOf(const Parameter& parameter) const;
  // Of the two dtypes that all parameters have by default.
  DType gradient_dtype() const { return ParameterDTypes{param_dtype, reduce_dtype}.gradient_dtype(); }
};

}  // namespace weft
