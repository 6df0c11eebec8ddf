#include "src/comm/phases/data_task.h"

#include <algorithm>
#include <vector>

#include "src/comm/base/copy_bytes.h"
#include "src/comm/base/stream_line.h"
#include "weft/core/status.h"

namespace weft {
namespace {

bool IsPlain(const LeafSource& leaf) { return leaf.encoding == WireEncoding::kPlain; }

size_t ElementBytes(int64_t count, DType dtype) { return static_cast<size_t>(BytesOf(count, dtype)); }

absl::Status ApplyDeltaSlice(const DecodeTask& task, std::byte* elements) {
  if (ApplyDelta(task.slice, task.count, elements)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "a delta from another node does not match the base of ", task.count, " ", ToAbsl(Name(task.dtype)),
      " on this rank: after a gather only the owner of a part may write it, and all ranks must run the same "
      "version"));
}

absl::Status Decompress(DType dtype, const std::byte* slice, int64_t count, std::byte* elements) {
  if (DecompressSlice(dtype, slice, count, elements)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("data from another node is not a compressed slice of ", count, " ", ToAbsl(Name(dtype)),
                   ": ranks run different versions, or a receive buffer was overwritten"));
}

// Thread-local memory for `slots` runs of `bytes` each, valid until the thread's next call.
std::byte* Workspace(size_t slots, size_t bytes) {
  thread_local std::vector<std::byte> memory;
  memory.resize(std::max(memory.size(), slots * bytes));
  return memory.data();
}

// Runs a reduction with plain leaves and target, each run of a slice in ranges by itself.
void RunPlainReduce(const ReduceTask& task, absl::Span<const LeafSource> leaves, const ReduceTarget& target) {
  if (task.ranges.empty()) {
    RunReduce(*task.program, leaves, task.op, target, task.count);
    return;
  }
  absl::InlinedVector<LeafSource, 8> run_leaves(leaves.begin(), leaves.end());
  ReduceTarget run_target = target;
  ForEachSpan(task.ranges, task.first, task.count, [&](int64_t offset, int64_t length, int64_t begin) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      const LeafSource& leaf = leaves[i];
      const bool in_views = leaf.in_ranges && leaf.views != nullptr;
      run_leaves[i].data = in_views ? leaf.views->At(begin)
                                    : leaf.data + ElementBytes(leaf.in_ranges ? begin : offset, leaf.dtype);
    }
    run_target.data = target.data + ElementBytes(offset, target.dtype);
    for (size_t i = 0; i < target.copies.size(); ++i) {
      run_target.copies[i] = target.copies[i] + ElementBytes(offset, target.dtype);
    }
    RunReduce(*task.program, run_leaves, task.op, run_target, length);
  });
}

// Runs a reduction with a compressed leaf or target. The decompressed leaves, and the result before it is
// compressed, lie in the workspace.
absl::Status RunCompressedReduce(const ReduceTask& task) {
  auto leaves = task.leaves;
  ReduceTarget target = task.target;
  const size_t slot_bytes = static_cast<size_t>(task.count) * sizeof(float);
  std::byte* slot = Workspace(leaves.size() + 1, slot_bytes);
  for (LeafSource& leaf : leaves) {
    if (IsPlain(leaf)) continue;
    WEFT_CHECK(leaf.encoding == WireEncoding::kCompressed, "a leaf of a reduction is a delta");
    WEFT_RETURN_IF_ERROR(Decompress(leaf.dtype, leaf.data, task.count, slot));
    leaf = {slot, leaf.dtype};
    slot += slot_bytes;
  }
  const bool compresses = target.encoding != WireEncoding::kPlain;
  WEFT_CHECK(target.encoding != WireEncoding::kDelta, "the target of a reduction is a delta");
  if (compresses) target.data = slot;
  RunPlainReduce(task, leaves, target);
  if (compresses) CompressSlice(target.dtype, slot, task.count, task.target.data);
  return absl::OkStatus();
}

absl::Status Run(const CopyTask& task) {
  CopyBytes(task.target, task.source, task.bytes, task.nontemporal);
  if (task.nontemporal) FenceStreams();
  return absl::OkStatus();
}

absl::Status Run(const RangesCopyTask& task) {
  CopySlice(task.source, task.target, task.count, task.element_bytes, task.nontemporal);
  if (task.nontemporal) FenceStreams();
  return absl::OkStatus();
}

absl::Status Run(const StridedCopyTask& task) {
  task.range->Run(task.source, task.target, task.first, task.count);
  return absl::OkStatus();
}

// Elements in several ranges are encoded from, and decoded to, the workspace.
absl::Status Run(const EncodeTask& task) {
  const std::byte* elements = task.elements.data;
  if (!task.elements.is_contiguous()) {
    std::byte* packed = Workspace(1, ElementBytes(task.count, task.dtype));
    CopySlice(task.elements, packed, task.count, SizeOf(task.dtype), /*nontemporal=*/false);
    elements = packed;
  }
  if (task.base != nullptr) {
    EncodeDelta(elements, task.base, task.count, task.slice);
  } else {
    CompressSlice(task.dtype, elements, task.count, task.slice);
  }
  return absl::OkStatus();
}

absl::Status Decode(const DecodeTask& task, std::byte* elements) {
  if (task.encoding == WireEncoding::kDelta) return ApplyDeltaSlice(task, elements);
  return Decompress(task.dtype, task.slice, task.count, elements);
}

absl::Status Run(const DecodeTask& task) {
  if (task.elements.is_contiguous()) return Decode(task, task.elements.data);
  std::byte* packed = Workspace(1, ElementBytes(task.count, task.dtype));
  const size_t element_bytes = SizeOf(task.dtype);
  if (task.encoding == WireEncoding::kDelta) {
    CopySlice(task.elements, packed, task.count, element_bytes, /*nontemporal=*/false);
  }
  WEFT_RETURN_IF_ERROR(Decode(task, packed));
  CopySlice(packed, task.elements, task.count, element_bytes, /*nontemporal=*/false);
  return absl::OkStatus();
}

absl::Status Run(const ReduceTask& task) {
  if (task.target.encoding != WireEncoding::kPlain ||
      !std::all_of(task.leaves.begin(), task.leaves.end(), IsPlain)) {
    WEFT_RETURN_IF_ERROR(RunCompressedReduce(task));
  } else {
    RunPlainReduce(task, task.leaves, task.target);
  }
  if (task.target.nontemporal) FenceStreams();
  return absl::OkStatus();
}

absl::Status Run(const WholeMoveTask& task) {
  task.move->Run();
  return absl::OkStatus();
}

size_t WrittenBytes(const CopyTask& task) { return task.bytes; }
size_t WrittenBytes(const RangesCopyTask& task) {
  return static_cast<size_t>(task.count) * task.element_bytes;
}
size_t WrittenBytes(const StridedCopyTask& task) { return ElementBytes(task.count, task.range->dtype()); }
size_t WrittenBytes(const EncodeTask& task) { return ElementBytes(task.count, task.dtype); }
size_t WrittenBytes(const DecodeTask& task) { return ElementBytes(task.count, task.dtype); }
size_t WrittenBytes(const ReduceTask& task) {
  return ElementBytes(task.count, task.target.dtype) * (1 + task.target.copies.size());
}
size_t WrittenBytes(const WholeMoveTask& task) { return task.size.written; }

}  // namespace

absl::Status RunTask(const TaskBody& body) {
  return std::visit([](const auto& task) { return Run(task); }, body);
}

size_t TaskBytes(const TaskBody& body) {
  return std::visit([](const auto& task) { return WrittenBytes(task); }, body);
}

}  // namespace weft
