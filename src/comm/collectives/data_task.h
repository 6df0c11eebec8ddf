// One piece of data movement, small enough to be done between two looks at priorities. The engine's core
// hands pieces out; whoever takes one runs it outside the core's lock and reports back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>

#include "src/comm/base/operation_record.h"
#include "src/comm/collectives/reduce_kernel.h"
#include "weft/core/range_copy.h"

namespace weft {

struct DataTask {
  // Who issued it: the stream to tell when it is done, and the record that keeps the stream alive.
  std::shared_ptr<OperationRecord> record;
  class TaskOwner* owner = nullptr;
  int64_t ticket = 0;  // The owner's name for the piece.
  Priority priority = Priority::kBulk;

  // A reduction if `program` is set; elements [first, first + count) of a strided tensor, from the only leaf,
  // if `range` is set; else a copy of `bytes`, which are `count` elements, from the first leaf. Leaves and
  // targets of reductions and copies may be compressed slices, those of copies changes: of the second leaf,
  // or to what the target holds.
  const ReduceProgram* program = nullptr;
  const RangeCopy* range = nullptr;
  int64_t first = 0;
  absl::InlinedVector<LeafSource, 8> leaves;
  ReduceOp op = ReduceOp::kSum;
  ReduceTarget target{};
  int64_t count = 0;
  size_t bytes = 0;
};

// Something that issues tasks and is told of their end, under the core's lock.
class TaskOwner {
 public:
  virtual void OnTaskDone(int64_t ticket) = 0;

 protected:
  ~TaskOwner() = default;
};

// Moves the data. Errors: kInternal (a leaf is not the slice that it should be).
absl::Status RunTask(const DataTask& task);
// What it writes, in bytes, compressed or not.
size_t TaskBytes(const DataTask& task);

}  // namespace weft
