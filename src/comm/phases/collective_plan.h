// Plan of a collective: its kind, its buffers and the parts of each rank, as submitted. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "src/comm/base/group_placement.h"
#include "weft/comm/part_ranges.h"
#include "weft/comm/source_views.h"
#include "weft/comm/types.h"
#include "weft/core/dtype.h"
#include "weft/core/tensor_view.h"
#include "weft/mesh/process_group.h"

namespace weft {

// Parts of a buffer by group rank. They lie end to end, or in ranges of the buffer.
struct PartLayout {
  using Elements = absl::InlinedVector<int64_t, 8>;    // Most groups on one node need no allocation.
  Elements counts;                                     // By group rank.
  Elements offsets;                                    // Prefix sums of the counts.
  std::shared_ptr<const PartRanges> ranges = nullptr;  // Null: the parts lie end to end.

  static PartLayout FromCounts(absl::Span<const int64_t> counts);
  // Parts of `count` elements each.
  static PartLayout Equal(int64_t count, int ranks);
  static PartLayout FromRanges(std::shared_ptr<const PartRanges> ranges);

  int64_t total() const { return counts.empty() ? 0 : offsets.back() + counts.back(); }
};

// Parts in which each rank of another node has the part of its counterpart on the caller's node, in the same
// place of the buffer. For Note [Mirrored nodes] in weft/mesh/simulation.h.
PartLayout MirrorParts(const PartLayout& parts, const GroupPlacement& placement);

struct CollectivePlan {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  // With parts in ranges, an AG whose input is its output is in place: its part lies in its ranges. Any other
  // input of an AG, and the output of an RS, has the elements of the rank's part end to end.
  const std::byte* input = nullptr;
  // RS with parts in ranges: the input lies in these views, if there are any, and `input` is unused.
  std::vector<SourceView> views = {};
  std::byte* output = nullptr;
  // kAllGatherDelta: the values of this rank's part in the outputs of other ranks.
  std::byte* base = nullptr;
  // Parts of the output (AG, broadcast), parts of the input (RS), or the part that each rank reduces (AR).
  PartLayout parts;
  int root = 0;  // Of a broadcast.
  // A2A: parts by group rank. Input, output and `parts` are then unused.
  std::vector<TensorView> sends;
  std::vector<TensorView> receives;
  // RS, AR: factor of the result.
  double scale = 1.0;

  // True if the input of each rank is its part, and the output is all parts.
  bool is_gather() const;
  // Elements of the contiguous buffers of `member`. 0 if the kind uses none.
  int64_t input_elements(int member) const;
  int64_t output_elements(int member) const;

  // Fills an empty plan with a collective over contiguous buffers: any kind but A2A and send-receive.
  void SetContiguous(OpKind new_kind, DType new_dtype, ReduceOp new_reduce, const std::byte* new_input,
                     std::byte* new_output, PartLayout&& new_parts) {
    kind = new_kind;
    dtype = new_dtype;
    reduce = new_reduce;
    input = new_input;
    output = new_output;
    parts = std::move(new_parts);
  }
};

// The plan of an A2A or send-receive. `sends` and `receives` are by group rank; undefined views are empty
// parts.
// Errors: kInvalidArgument (names the part and what is wrong with it).
absl::StatusOr<CollectivePlan> PlanExchange(const ProcessGroup& group, OpKind kind,
                                            std::vector<TensorView> sends, std::vector<TensorView> receives,
                                            DType dtype);

// Bytes that peers send to this rank in an exchange.
int64_t BytesFromPeers(const ProcessGroup& group, const CollectivePlan& exchange);

// Views of parts that lie end to end in rank order.
std::vector<TensorView> ContiguousParts(void* memory, DType dtype, const std::vector<int64_t>& counts);

}  // namespace weft
