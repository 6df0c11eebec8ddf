// Checks of the arguments with which operations are submitted. `what` names the operation in messages.
//
// Pure. Errors of all: kInvalidArgument (names the operation, what was given, and the remedy).
// src/comm/base/buffer_limits.h has the limits of buffers.
#pragma once

#include <cstdint>
#include <string_view>

#include <absl/status/status.h>
#include <absl/types/span.h>

#include "src/comm/base/operation_record.h"
#include "weft/comm/part_ranges.h"
#include "weft/comm/source_views.h"
#include "weft/comm/types.h"
#include "weft/core/dtype.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/process_group.h"

namespace weft {

// A number of elements is not negative, and has at most kMaxBufferBytes bytes.
absl::Status CheckTotal(int64_t total_count, DType dtype, std::string_view what);
// Counts by rank add up to `total_count`. Without counts, the ranks divide it evenly.
absl::Status CheckCounts(absl::Span<const int64_t> counts, int64_t total_count, DType dtype, int size,
                         std::string_view what);
// `earlier`, the `after` or the gate of a new operation, is of the same engine and has not failed: a failed
// operation never becomes *ready*. Errors: also kFailedPrecondition (it failed).
absl::Status CheckPredecessor(const OperationRecord& earlier, bool same_engine, std::string_view role);
// The reduction is defined for the dtype, and for the factor.
absl::Status CheckReduce(ReduceOp op, DType dtype, double scale, std::string_view what);

struct NamedBuffer {
  std::string_view name;
  const void* data;
  int64_t elements;
};
// The buffer is aligned to its elements and not null, or has no elements.
absl::Status CheckBuffer(const NamedBuffer& buffer, DType dtype, OpKind kind);
// The buffer, which peers read or write in place, lies in one segment of node memory.
absl::Status CheckInNodeMemory(const NodeHeap& heap, const NamedBuffer& buffer, DType dtype, OpKind kind);

// There are part ranges for each rank of the group, in at most kMaxBufferBytes bytes.
absl::Status CheckRanges(const PartRanges* parts, const ProcessGroup& group, DType dtype, OpKind kind);
// Views ascend, end within kMaxBufferBytes bytes, are aligned to their elements, and have all elements of
// the parts.
absl::Status CheckViews(absl::Span<const SourceView> views, const PartRanges& parts, DType dtype);

}  // namespace weft
