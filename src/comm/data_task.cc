#include "src/comm/data_task.h"

#include "src/comm/copy_bytes.h"
#include "src/comm/stream_line.h"

namespace weft {

void RunTask(const DataTask& task) {
  if (task.program != nullptr) {
    RunReduce(*task.program, task.leaves, task.op, task.target, task.count);
  } else if (task.range != nullptr) {
    task.range->Run(task.leaves[0].data, task.target.data, task.first, task.count);
  } else {
    CopyBytes(task.target.data, task.leaves[0].data, task.bytes, task.target.nontemporal);
  }
  if (task.target.nontemporal) FenceStreams();
}

size_t TaskBytes(const DataTask& task) {
  if (task.program != nullptr) {
    return static_cast<size_t>(task.count) * SizeOf(task.target.dtype) * (1 + task.target.copies.size());
  }
  if (task.range != nullptr) return static_cast<size_t>(task.count) * SizeOf(task.range->dtype());
  return task.bytes;
}

}  // namespace weft
