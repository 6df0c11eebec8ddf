// Options of sharding.
//
// The dtypes and their casts, the divide factor, replicate groups, meshes of parameters (mesh_of), ignored
// parameters and gradients of unused ones change results. All other options change costs only, and not a bit
// of the results, with one exception: if shard groups span nodes, partial sums of bf16 gradients are rounded
// before they are sent, so the layout changes their rounding.
//
// Ranks that share a shard group must have the same layout of each parameter group, as the options and
// Parameter::requires_grad give it; ranks of a replicate group must have the same for what they reduce
// together. FullyShard names the first group in which they differ. Options that decide about collectives or
// their order must be alike too: on all ranks unused_gradients, shard_optimizer_over_replicas,
// wire_compression, reshard_after_forward, reshard_root_after_forward, prefetch_depth, max_reduce_scatters,
// the residency of images, the numbers of parameter groups, of replicate groups and of regather sizes, and
// with UnusedGradients::kNone the number of parameters in each group; and gradient_divide_factor in a shard
// group and in a replicate group.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/status.h>

#include "weft/comm/types.h"
#include "weft/core/dtype.h"
#include "weft/mesh/device_mesh.h"
#include "weft/mesh/process_group.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

struct ParameterDTypes {
  // Dtype of all-gathers, forward and backward: f32, bf16, f16 or f64. In f16 gradients need a loss scale:
  // see LossScaler (weft/optim/loss_scaler.h).
  DType param = DType::kF32;
  // Dtype in which gradients are exchanged: f32, bf16, f16 or f64. Sums over ranks are accumulated in f64 for
  // f64, otherwise in fp32.
  DType reduce = DType::kF32;
  // Dtype of the gradients that backward writes: f32, bf16, f16 or f64. Unset: that of `param` and `reduce`
  // if both are bf16 or both f16, f64 if `param` is, else f32.
  std::optional<DType> gradient = std::nullopt;
  // Dtype of the master shard, and of the sums of its gradients over microbatches: f32 or f64. f64 is for
  // clients of ShardedGroups: modules of FullyShard and ShardedAdamW compute in fp32.
  DType master = DType::kF32;

  DType gradient_dtype() const;
  // Errors: kInvalidArgument (names the option, its value and what is allowed).
  absl::Status Validate() const;
};

// Sharing of images by the ranks of a node.
enum class NodeShared : uint8_t {
  kAuto,  // If they can and node memory has room; otherwise ResidencyChoice::reason says why not.
  kOn,    // Yes; an error if they cannot.
  kOff,   // No: each rank has images of its own.
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

// Gradient of an unused parameter. A parameter is *unused* if, since ZeroGradients, no rank of the mesh has
// written its gradient in a backward (Parameter::BeginGradWrite) or replaced it. All ranks agree on that once
// a step, in the last backward, so a parameter that one rank uses is used on all ranks.
enum class UnusedGradients : uint8_t {
  kNone,  // ShardView::grad is null: optimizers skip the parameter, without decaying it (as PyTorch's FSDP2).
  // Zeros: optimizers decay the parameter and its moments. Saves the agreement, so a gradient that comes
  // after its group was reduced is an error: Note [Late gradients] (sharding/model/group_schedule.h).
  kZero,
};

struct ShardingPolicy {
  // The elements that each rank owns. kContiguous and kRows are *zero copy*: the output of the all-gather is
  // the parameters, and the gradient image is the input of the reduce-scatter. With kRows, the shard of a
  // parameter is a range of its rows. With kPerParameter, every parameter is sharded on a dim of its own, and
  // copied out of and into the buffers of collectives.
  FlatKind layout = FlatKind::kContiguous;
  // See ChooseResidency.
  NodeShared node_shared = NodeShared::kAuto;
  // Off: parameters stay unsharded from forward to the end of their backward. This saves a gather and keeps
  // the whole model in memory.
  bool reshard_after_forward = true;
  // k > 1: a group resharded after forward keeps one of k parts of its image, and backward gathers the others
  // from the other k - 1 ranks of its *regather group*: k consecutive ranks of the shard group. k must divide
  // the size of the shard group. 0: nothing is kept.
  int reshard_after_forward_size = 0;
  // The same for the group of one module, by the group's name (GroupMembers::name). Returning nothing: the
  // value above. Unset: the value above for all. If any group keeps a part, images are private: see
  // ChooseResidency.
  std::function<std::optional<int>(const std::string& group)> reshard_after_forward_size_of = nullptr;
  // The root's backward begins where its forward ends, so resharding it in between only costs a gather.
  bool reshard_root_after_forward = false;
  // Groups gathered ahead of the one that computes, at most kMaxPrefetchDepth. 0: each group is gathered when
  // it is needed. Unset: ResolvePrefetch chooses.
  std::optional<int> prefetch_depth = std::nullopt;
  // See ParameterDTypes.
  DType param_dtype = DType::kF32;
  DType reduce_dtype = DType::kF32;
  // In a narrow dtype, passes whose gradients are not reduced at once round each of their sums.
  std::optional<DType> gradient_dtype = std::nullopt;
  // Dtypes of each parameter instead of the three above; those of one group must agree. Unset: those above.
  std::function<ParameterDTypes(const Parameter&)> dtypes_of = nullptr;
  // On: floating-point inputs of a group's module are cast to the group's compute dtype, and their gradients
  // back.
  bool cast_forward_inputs = true;
  // Dtype to which floating-point outputs of the root are cast. Unset: no cast.
  std::optional<DType> output_dtype = std::nullopt;
  // Divisor of summed gradients, in addition to the division in the loss. In f16 a power of two near its
  // square root is divided out before the exchange, so that sums do not overflow, and the rest afterwards.
  double gradient_divide_factor = 1.0;
  // Bounds on the operations in flight during backward: reduce-scatters, each of which keeps one group's full
  // gradients alive (0: backward waits for each), and all-reduces (at least 1).
  int max_reduce_scatters = 2;
  int max_all_reduces = 2;
  // For kPerParameter: the dim on which a parameter is sharded. Negative dims count from the end. Unset: 0.
  std::function<int(const Parameter&)> shard_dim = nullptr;
  // The ranks over which a parameter's gradient is all-reduced, with this rank among them. All ranks must
  // name the same groups in the same order of parameters. Returning nothing: the gradient is reduce-scattered
  // only. Unset: the replicas of the mesh.
  std::function<std::optional<ProcessGroup>(const Parameter&)> replicate_group = nullptr;

  // The mesh over which a parameter is sharded and replicated instead of the model's: another division of the
  // same ranks into replicas and shard groups, with the model's axes. The parameters of one group have one
  // mesh. Images are private if it gives another mesh to any. Returning nothing: the model's mesh. Unset: the
  // model's for all. Alike on all ranks. Not with shard_optimizer_over_replicas. For checkpoints see
  // ShardedModel::IsFirstReplica.
  std::function<std::optional<DeviceMesh>(const Parameter&)> mesh_of = nullptr;

  // On: each replica of a shard updates one part of it. The all-reduce of gradients becomes a reduce-scatter,
  // and forward gathers the other replicas' updates. As many bytes are sent, half of them when the wire is
  // otherwise idle; moments and reduced gradients take the memory of one part.
  // REQUIRES: the mesh has replicas.
  bool shard_optimizer_over_replicas = false;

  UnusedGradients unused_gradients = UnusedGradients::kNone;

  // Compression of weights and gradients between nodes. With the optimizer sharded over replicas, updates are
  // then delta-encoded, which takes four more bytes for each element that a rank updates. Compression pays
  // where links are slow compared with the cores: ChooseWireCompression measures.
  WireCompression wire_compression = WireCompression::kNone;

  // Frozen parameters that may be trained later: they have a place in gradients from the start, so that
  // Parameter::requires_grad may be set between steps, alike on all ranks. A group whose parameters are all
  // frozen at a time takes no memory for gradients and is not reduced; in other groups the gradients of
  // frozen parameters with a place are exchanged as zeros. Unset: none; a frozen parameter stays frozen.
  std::function<bool(const Parameter&)> trained_later = nullptr;

  // Parameters that are not sharded: they stay whole with the caller on each rank, and are never gathered,
  // reduced, clipped or listed among the shards. Unset: none.
  std::function<bool(const Parameter&)> ignored = nullptr;

  static constexpr int kMaxPrefetchDepth = 2;
  static constexpr int kPrefetchOnANode = 1;
  static constexpr int kPrefetchOverNodes = 2;
  bool is_zero_copy() const { return IsZeroCopy(layout); }
  int PrefetchDepth() const { return prefetch_depth.value_or(kPrefetchOnANode); }

  // Errors: kInvalidArgument (names the option, its value and what is allowed).
  absl::Status Validate() const;
  ParameterDTypes DTypesOf(const Parameter& parameter) const;
  // The dtypes of all parameters if dtypes_of is unset.
  ParameterDTypes DTypes() const { return {param_dtype, reduce_dtype, gradient_dtype}; }
};

}  // namespace weft
