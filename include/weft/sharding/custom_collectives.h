// Custom collectives of parameter groups, which a caller supplies: all-gather, reduce-scatter, and a hook on
// reduced gradients.
//
// The model starts a custom collective where it would submit the engine's: on the thread that drives the
// model, in program order, the same on all ranks. It waits where it would wait for the engine's. It calls no
// custom collective for a group of one rank or without elements.
//
// Errors: an error from a start or a wait fails the model on all ranks. A wait must return when a peer has
//   failed; use a deadline if the transport cannot detect that. FlatKind::kRows over several ranks allows no
//   custom all-gather or reduce-scatter, whose parts lie end to end: their start is an error.
// Lifetime: the buffers of a request stay valid until the collective is released. After a failure, node
//   memory stays valid until ShardedModel::ResetAfterError. A destroyed PendingCollective must not use the
//   buffers any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/types.h"
#include "weft/core/tensor_view.h"
#include "weft/mesh/process_group.h"

namespace weft {

// gathered = the parts of all ranks of the group, end to end.
struct AllGatherRequest {
  const std::string& label;   // Name of the parameter group.
  const ProcessGroup& group;  // The shard group, or the regather group of reshard_after_forward_size.
  const void* part;           // This rank's part; it may lie at its place in `gathered`.
  void* gathered;
  DType dtype;
  int64_t gathered_elements;  // The total over all ranks, in equal parts.
  Priority priority;
};

// output = the sum over ranks of this rank's part of their inputs. To keep results independent of schedule
// and placement, sum in fp32, in an order that depends on the group alone, and round once.
struct ReduceScatterRequest {
  const std::string& label;
  const ProcessGroup& group;
  const void* input;  // The parts of all ranks, end to end.
  void* output;
  DType dtype;
  absl::Span<const int64_t> counts;  // Elements of each rank's part.
};

// A caller's collective under way, with the two events of a Work.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  // Blocks until the outputs are valid on this rank.
  virtual absl::Status Wait() = 0;
  // Blocks until, in addition, no peer uses this rank's buffers.
  virtual absl::Status WaitReleased() = 0;
  // True if it is released or has failed. Never blocks.
  virtual bool TestReleased() const = 0;
};

using StartedCollective = absl::StatusOr<std::unique_ptr<PendingCollective>>;
using CustomAllGather = std::function<StartedCollective(const AllGatherRequest&)>;
using CustomReduceScatter = std::function<StartedCollective(const ReduceScatterRequest&)>;

// Called with the result of one reduction, in the group's master dtype, before it is added to the reduced
// sum. `shard`: the elements that this rank updates, [n]. The hook may change them, and may communicate: it
// runs on the thread that drives the model, at the end of the last backward, in the order of submission, so
// at the same place on all ranks. An error fails the model.
using GradientHook = std::function<absl::Status(const std::string& group, const TensorView& shard)>;

}  // namespace weft
