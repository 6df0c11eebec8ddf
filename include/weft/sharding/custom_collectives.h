// A caller's own all-gather and reduce-scatter of parameter groups: compressed, over another transport, or
// fused with something else.
//
// They are started where the engine's would be submitted: on the thread that drives the group, in program
// order, the same on all ranks; and they are waited for as those are. Where there is nothing to exchange, in
// a group of one rank or without elements, they are not called.
//
// Errors: one that a start or a wait returns stops the context on all ranks. A caller's collective must
// return
//   from waiting when a peer has failed, by a deadline if it cannot know.
// Lifetime: the buffers of a request stay until it is released; so does node memory of failed ones, until
//   CommContext::ResetAfterError. Destroying a pending collective ends its use of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/types.h"
#include "weft/comm/work.h"
#include "weft/mesh/process_group.h"

namespace weft {

// gathered = the parts of all ranks of the group, end to end.
struct AllGatherRequest {
  const std::string& label;   // The parameter group's name.
  const ProcessGroup& group;  // The shard group, or its neighbours that reshard_after_forward_size asks for.
  const void* part;           // This rank's; it may lie at its place in `gathered`.
  void* gathered;
  DType dtype;
  int64_t gathered_elements;  // In equal parts.
  Priority priority;
};

// output = the sum of this rank's parts of all inputs. For results that no schedule or placement changes, sum
// in fp32, in an order that depends on the group alone, with one rounding.
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
  virtual absl::Status Wait() = 0;          // Until the outputs are valid here.
  virtual absl::Status WaitReleased() = 0;  // And no peer uses this rank's buffers any more.
  virtual bool TestReleased() const = 0;    // Or it has failed; never blocks.
};

using StartedCollective = absl::StatusOr<std::unique_ptr<PendingCollective>>;
using CustomAllGather = std::function<StartedCollective(const AllGatherRequest&)>;
using CustomReduceScatter = std::function<StartedCollective(const ReduceScatterRequest&)>;

// Either's collective, the engine's or a caller's. Empty by default and after a move.
class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(Work work) : work_(std::move(work)) {}
  explicit Transfer(std::unique_ptr<PendingCollective> custom) : custom_(std::move(custom)) {}

  bool valid() const { return custom_ != nullptr || work_.valid(); }
  absl::Status Wait() { return custom_ != nullptr ? custom_->Wait() : work_.Wait(); }
  absl::Status WaitReleased() { return custom_ != nullptr ? custom_->WaitReleased() : work_.WaitReleased(); }
  bool TestReleased() const { return custom_ != nullptr ? custom_->TestReleased() : work_.TestReleased(); }
  // What operations of the engine may come `after`; null for a caller's.
  const Work* work() const { return work_.valid() ? &work_ : nullptr; }

 private:
  Work work_;
  std::unique_ptr<PendingCollective> custom_;
};

}  // namespace weft
