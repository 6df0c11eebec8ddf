// A unit of data movement that the engine's core issues: a piece, a slice or a run of slices of a collective.
//
// A task is small, so that priorities are reconsidered often. A thread takes a task under the core's lock,
// runs it outside the lock, and reports the result to the core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>

#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>

#include "src/comm/base/operation_record.h"
#include "src/comm/base/slice_place.h"
#include "src/comm/phases/reduce_kernel.h"
#include "weft/core/range_copy.h"

namespace weft {

// Copies `bytes` between buffers that do not overlap.
struct CopyTask {
  const std::byte* source;
  std::byte* target;
  size_t bytes;
  bool nontemporal;  // Use non-temporal stores.
};

// Copies `count` elements between places that do not overlap, of which at least one has several ranges.
struct RangesCopyTask {
  SlicePlace source;
  SlicePlace target;
  int64_t count;
  size_t element_bytes;
  bool nontemporal;
};

// Copies elements [first, first + count) of a strided tensor, in row-major order of its shape.
struct StridedCopyTask {
  const RangeCopy* range;  // Owned by the stream that issued the task.
  const std::byte* source;
  std::byte* target;
  int64_t first;
  int64_t count;
};

// Encodes `count` elements as a slice for the wire: kDelta if there is a base, else kCompressed.
struct EncodeTask {
  DType dtype;
  SlicePlace elements;    // Read only.
  const std::byte* base;  // The values that the receiver holds, or null.
  std::byte* slice;
  int64_t count;
};

// Decodes a slice from the wire into `count` elements. A kDelta slice is applied to the base in `elements`.
struct DecodeTask {
  DType dtype;
  WireEncoding encoding;  // kCompressed or kDelta.
  const std::byte* slice;
  SlicePlace elements;
  int64_t count;
};

// Evaluates a reduction program over `count` elements of every leaf.
// REQUIRES: leaves and target are kPlain or kCompressed.
struct ReduceTask {
  const ReduceProgram* program;  // Owned by the stream that issued the task.
  absl::InlinedVector<LeafSource, 8> leaves;
  ReduceOp op;
  ReduceTarget target;
  int64_t count;
  // Place of the slice in the buffers of the leaves that are `in_ranges`: see ForEachSpan.
  absl::Span<const PartRanges::PlacedRange> ranges = {};
  int64_t first = 0;
};

// Movement of whole outputs of an operation, as one task that the operation runs itself.
class WholeMove {
 public:
  virtual void Run() const = 0;

 protected:
  ~WholeMove() = default;
};
struct MoveSize {
  size_t written;  // Bytes.
  size_t read;     // Bytes.
};
struct WholeMoveTask {
  const WholeMove* move;  // The operation that issued the task.
  MoveSize size;
};

using TaskBody = std::variant<CopyTask, RangesCopyTask, StridedCopyTask, EncodeTask, DecodeTask, ReduceTask,
                              WholeMoveTask>;

struct DataTask {
  std::shared_ptr<OperationRecord> record;  // Keeps the owner alive.
  class TaskOwner* owner;                   // The stream that issued the task.
  int64_t ticket;                           // The owner's number of the task, or of its first slice.
  Priority priority;
  TaskBody body;
  int64_t cross_domain_bytes = 0;  // Bytes that it moves between share domains of the node.
  bool is_immediate = false;       // The thread that finds it runs it, as to wake another would take longer.
  int64_t slices = 1;              // Number of slices that it moves. See Note [Runs of slices].
};

// An issuer of tasks.
class TaskOwner {
 public:
  // The task has run. Called under the core's lock, once for each slice of the task.
  virtual void OnTaskDone(int64_t ticket) = 0;

 protected:
  ~TaskOwner() = default;
};

// Moves the data. Errors: kInternal (a slice does not decode).
absl::Status RunTask(const TaskBody& body);
// Bytes of the elements that the task produces, before any encoding.
size_t TaskBytes(const TaskBody& body);

}  // namespace weft
