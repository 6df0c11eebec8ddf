#include "src/comm/engine/argument_checks.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include <absl/strings/str_cat.h>

#include "src/comm/base/buffer_limits.h"
#include "src/comm/phases/reduce_kernel.h"
#include "weft/core/status.h"

namespace weft {

absl::Status CheckTotal(int64_t total_count, DType dtype, std::string_view what) {
  if (total_count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(what), ": a count of ", total_count, " is negative"));
  }
  if (total_count <= MaxElements(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": a count of ", total_count, " ",
                                                 ToAbsl(Name(dtype)), " is too large; ", kMaxBufferText));
}

absl::Status CheckCounts(absl::Span<const int64_t> counts, int64_t total_count, DType dtype, int size,
                         std::string_view what) {
  WEFT_RETURN_IF_ERROR(CheckTotal(total_count, dtype, what));
  if (counts.empty()) {
    if (total_count % size == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": ", total_count,
                                                   " elements do not divide among ", size,
                                                   " ranks; give counts, or pad"));
  }
  if (static_cast<int>(counts.size()) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(what), ": ", counts.size(), " counts for a group of ", size, " ranks"));
  }
  for (const int64_t count : counts) WEFT_RETURN_IF_ERROR(CheckTotal(count, dtype, what));
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (sum == total_count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": counts add up to ", sum, ", not to the ",
                                                 total_count, " elements given"));
}

absl::Status CheckPredecessor(const OperationRecord& earlier, bool same_engine, std::string_view role) {
  if (!same_engine) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", ToAbsl(role), "` is a Work of another engine; pass one of this engine"));
  }
  if (earlier.State() != OperationState::kFailed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot start after ", Describe(earlier), ": ", earlier.error.message()));
}

absl::Status CheckReduce(ReduceOp op, DType dtype, double scale, std::string_view what) {
  const bool is_integer = !IsFloating(dtype);
  if (op == ReduceOp::kAverage && is_integer) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": an average of ", ToAbsl(Name(dtype)),
                                                   " is not defined; use a sum, and divide it"));
  }
  if (scale != 1.0 && (op != ReduceOp::kSum || is_integer)) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": a ", ToAbsl(Name(op)), " of ",
                                                   ToAbsl(Name(dtype)), " with the factor ", scale,
                                                   "; only sums of floating-point numbers are scaled"));
  }
  if (IsBitwise(op) && !is_integer) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": a ", ToAbsl(Name(op)), " of ",
                                                   ToAbsl(Name(dtype)),
                                                   " is not defined; reduce integers of the same size"));
  }
  return absl::OkStatus();
}

absl::Status CheckBuffer(const NamedBuffer& buffer, DType dtype, OpKind kind) {
  if (buffer.elements == 0 || (buffer.data != nullptr && IsAligned(buffer.data, dtype)))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(Name(kind)), ": the ", ToAbsl(buffer.name),
                   buffer.data == nullptr ? absl::StrCat(" of ", buffer.elements, " elements is null")
                                          : MisalignedText(dtype)));
}

absl::Status CheckInNodeMemory(const NodeHeap& heap, const NamedBuffer& buffer, DType dtype, OpKind kind) {
  if (buffer.elements == 0) return absl::OkStatus();
  const int64_t bytes = BytesOf(buffer.elements, dtype);
  if (heap.AddressOf(buffer.data, static_cast<size_t>(bytes))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(Name(kind)), ": the ", ToAbsl(buffer.name), " of ", bytes,
      " bytes does not lie in node memory; take it from ",
      kind == OpKind::kAllGatherShared ? "a block that the node's ranks share" : "the node heap"));
}

absl::Status CheckRanges(const PartRanges* parts, const ProcessGroup& group, DType dtype, OpKind kind) {
  if (parts != nullptr && parts->ranks() == group.size())
    return CheckTotal(parts->extent(), dtype, Name(kind));
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(Name(kind)), ": ",
      parts == nullptr ? "no part ranges" : absl::StrCat("part ranges of ", parts->ranks(), " ranks"),
      " for group ", group.name, " of ", group.size(), " ranks; give ranges for each rank"));
}

absl::Status CheckViews(absl::Span<const SourceView> views, const PartRanges& parts, DType dtype) {
  int64_t end = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    const ElementRange& range = views[i].range;
    const auto refuse = [&](const auto&... fault) {
      return absl::InvalidArgumentError(absl::StrCat("reduce_scatter: view ", i, fault...));
    };
    const bool is_negative = range.begin < 0 || range.count < 0;
    if (is_negative || range.count > MaxElements(dtype) || range.begin > MaxElements(dtype) - range.count) {
      return refuse(" begins at element ", range.begin, " and has ", range.count, " elements of ",
                    ToAbsl(Name(dtype)), "; ", is_negative ? "neither may be negative" : kMaxBufferText);
    }
    if (range.begin < end) {
      return refuse(" of elements [", range.begin, ", ", range.end(), ") follows one that ends at ", end,
                    "; give views in ascending order");
    }
    if (range.count > 0 && !IsAligned(views[i].data, dtype))
      return refuse(": its data", MisalignedText(dtype));
    end = range.end();
  }
  for (int rank = 0; rank < parts.ranks(); ++rank) {
    for (const PartRanges::PlacedRange& placed : parts.part(rank)) {
      const ElementRange& range = placed.range;
      const auto* view = std::upper_bound(
          views.begin(), views.end(), range.begin,
          [](int64_t element, const SourceView& candidate) { return element < candidate.range.end(); });
      if (view != views.end() && view->range.begin <= range.begin && range.end() <= view->range.end())
        continue;
      return absl::InvalidArgumentError(absl::StrCat("reduce_scatter: no view has the elements [",
                                                     range.begin, ", ", range.end(), ") of the part of rank ",
                                                     rank, "; make part ranges with CutsOf the views"));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft
