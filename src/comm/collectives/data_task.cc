#include "src/comm/collectives/data_task.h"

#include <algorithm>
#include <vector>

#include "src/comm/base/copy_bytes.h"
#include "src/comm/base/stream_line.h"
#include "weft/core/status.h"

namespace weft {
namespace {

bool IsPlain(const LeafSource& leaf) { return leaf.encoding == WireEncoding::kPlain; }

absl::Status Decompress(const LeafSource& leaf, int64_t count, std::byte* numbers) {
  if (leaf.encoding == WireEncoding::kDelta) {
    if (ApplyDelta(leaf.data, count, numbers)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "what another node sent are no changes of the ", count, " ", ToAbsl(Name(leaf.dtype)),
        " that they are for: these were written since they were gathered, which is for their owner to do, or "
        "ranks run different versions"));
  }
  if (DecompressSlice(leaf.dtype, leaf.data, count, numbers)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("what another node sent is no compressed slice of ", count, " ",
                                          ToAbsl(Name(leaf.dtype)),
                                          ": ranks run different versions, or something has overwritten it"));
}

void Compress(const DataTask& task) {
  const std::byte* numbers = task.leaves[0].data;
  if (task.target.encoding == WireEncoding::kDelta) {
    EncodeDelta(numbers, task.leaves[1].data, task.count, task.target.data);
  } else {
    CompressSlice(task.leaves[0].dtype, numbers, task.count, task.target.data);
  }
}

// `slots` runs of `bytes` each, of the calling thread, until its next call.
std::byte* Workspace(size_t slots, size_t bytes) {
  thread_local std::vector<std::byte> memory;
  memory.resize(std::max(memory.size(), slots * bytes));
  return memory.data();
}

// What is compressed is plain in this thread's workspace alone, for as long as the reduction takes.
absl::Status RunCompressedReduce(const DataTask& task) {
  auto leaves = task.leaves;
  ReduceTarget target = task.target;
  const size_t slot_bytes = static_cast<size_t>(task.count) * sizeof(float);
  std::byte* slot = Workspace(leaves.size() + 1, slot_bytes);
  for (LeafSource& leaf : leaves) {
    if (IsPlain(leaf)) continue;
    WEFT_CHECK(leaf.encoding == WireEncoding::kCompressed, "a reduction of changes");
    WEFT_RETURN_IF_ERROR(Decompress(leaf, task.count, slot));
    leaf = {slot, leaf.dtype};
    slot += slot_bytes;
  }
  const bool compresses = target.encoding != WireEncoding::kPlain;
  WEFT_CHECK(target.encoding != WireEncoding::kDelta, "a reduction into changes");
  if (compresses) target.data = slot;
  RunReduce(*task.program, leaves, task.op, target, task.count);
  if (compresses) CompressSlice(target.dtype, slot, task.count, task.target.data);
  return absl::OkStatus();
}

absl::Status RunReduction(const DataTask& task) {
  if (task.target.encoding != WireEncoding::kPlain ||
      !std::all_of(task.leaves.begin(), task.leaves.end(), IsPlain)) {
    return RunCompressedReduce(task);
  }
  RunReduce(*task.program, task.leaves, task.op, task.target, task.count);
  return absl::OkStatus();
}

absl::Status RunCopy(const DataTask& task) {
  const LeafSource& leaf = task.leaves[0];
  if (!IsPlain(leaf)) return Decompress(leaf, task.count, task.target.data);
  if (task.target.encoding != WireEncoding::kPlain) {
    Compress(task);
  } else {
    CopyBytes(task.target.data, leaf.data, task.bytes, task.target.nontemporal);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTask(const DataTask& task) {
  if (task.program != nullptr) {
    WEFT_RETURN_IF_ERROR(RunReduction(task));
  } else if (task.range != nullptr) {
    task.range->Run(task.leaves[0].data, task.target.data, task.first, task.count);
  } else {
    WEFT_RETURN_IF_ERROR(RunCopy(task));
  }
  if (task.target.nontemporal) FenceStreams();
  return absl::OkStatus();
}

size_t TaskBytes(const DataTask& task) {
  if (task.program != nullptr) {
    return static_cast<size_t>(task.count) * SizeOf(task.target.dtype) * (1 + task.target.copies.size());
  }
  if (task.range != nullptr) return static_cast<size_t>(task.count) * SizeOf(task.range->dtype());
  return task.bytes;
}

}  // namespace weft
