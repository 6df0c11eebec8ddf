#include "src/comm/phases/collective_plan.h"

#include <numeric>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/comm/base/buffer_limits.h"
#include "src/comm/base/part_shape.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// A part of an exchange, for messages. Text is made only for an error, as an exchange has many parts.
struct PartName {
  OpKind kind;
  std::string_view direction;
  int member;

  std::string ToString() const {
    return absl::StrCat(ToAbsl(Name(kind)), ", ", ToAbsl(direction), " rank ", member);
  }
};

absl::Status CheckPart(const TensorView& part, DType dtype, const PartName& name) {
  const auto refuse = [&](const std::string& text) {
    return absl::InvalidArgumentError(absl::StrCat(name.ToString(), ": ", text));
  };
  if (part.shape.size() > PartShape::kMaxDims) {
    return refuse(absl::StrCat("a part has ", part.shape.size(), " dims, but at most ", PartShape::kMaxDims,
                               " are supported; merge dims that are contiguous"));
  }
  for (const int64_t size : part.shape) {
    if (size < 0) return refuse(absl::StrCat("shape ", ToString(part.shape), " has a negative size"));
  }
  if (IsEmptyPart(part)) return absl::OkStatus();
  if (part.elements() > MaxElements(dtype)) {
    return refuse(absl::StrCat("shape ", ToString(part.shape), " of ", ToAbsl(Name(dtype)), " is too large; ",
                               kMaxBufferText));
  }
  if (part.data == nullptr)
    return refuse(absl::StrCat("the data of a part of shape ", ToString(part.shape), " is null"));
  if (part.dtype != dtype) {
    return refuse(absl::StrCat("a part is in ", ToAbsl(Name(part.dtype)), ", but the exchange is in ",
                               ToAbsl(Name(dtype))));
  }
  if (IsAligned(part.data, dtype)) return absl::OkStatus();
  return refuse(absl::StrCat("the data of a part", MisalignedText(dtype)));
}

// Elements that overlap would be written more than once.
absl::Status CheckTarget(const TensorView& part, const PartName& name) {
  if (IsEmptyPart(part)) return absl::OkStatus();
  for (size_t dim = 0; dim < part.shape.size(); ++dim) {
    if (part.shape[dim] == 1 || part.strides[dim] != 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name.ToString(), ": dim ", dim, " has stride 0, so that its elements overlap"));
  }
  return absl::OkStatus();
}

}  // namespace

PartLayout PartLayout::FromCounts(absl::Span<const int64_t> counts) {
  PartLayout layout{{counts.begin(), counts.end()}, Elements(counts.size())};
  std::exclusive_scan(counts.begin(), counts.end(), layout.offsets.begin(), int64_t{0});
  return layout;
}

PartLayout PartLayout::Equal(int64_t count, int ranks) {
  PartLayout layout{Elements(static_cast<size_t>(ranks), count), Elements(static_cast<size_t>(ranks))};
  for (size_t i = 0; i < layout.offsets.size(); ++i) layout.offsets[i] = static_cast<int64_t>(i) * count;
  return layout;
}

PartLayout PartLayout::FromRanges(std::shared_ptr<const PartRanges> ranges) {
  PartLayout layout = FromCounts(ranges->counts());
  layout.ranges = std::move(ranges);
  return layout;
}

bool CollectivePlan::is_gather() const {
  switch (kind) {
    case OpKind::kAllGather:
    case OpKind::kAllGatherShared:
    case OpKind::kAllGatherDelta:
    case OpKind::kBroadcast:
      return true;
    default:
      return false;
  }
}

int64_t CollectivePlan::input_elements(int member) const {
  return is_gather() ? parts.counts[static_cast<size_t>(member)] : parts.total();
}

int64_t CollectivePlan::output_elements(int member) const {
  return kind == OpKind::kReduceScatter ? parts.counts[static_cast<size_t>(member)] : parts.total();
}

PartLayout MirrorParts(const PartLayout& parts, const GroupPlacement& placement) {
  std::vector<int> counterparts;
  PartLayout mirrored;
  for (int member = 0; member < placement.size(); ++member) {
    counterparts.push_back(placement.LocalCounterpart(member));
    const auto counterpart = static_cast<size_t>(counterparts.back());
    mirrored.counts.push_back(parts.counts[counterpart]);
    mirrored.offsets.push_back(parts.offsets[counterpart]);
  }
  if (parts.ranges != nullptr) mirrored.ranges = parts.ranges->Select(counterparts);
  return mirrored;
}

absl::StatusOr<CollectivePlan> PlanExchange(const ProcessGroup& group, OpKind kind,
                                            std::vector<TensorView> sends, std::vector<TensorView> receives,
                                            DType dtype) {
  const absl::string_view name = ToAbsl(Name(kind));
  for (const auto& [parts, what] : {std::pair{&sends, ", send"}, std::pair{&receives, ", receive"}}) {
    if (static_cast<int>(parts->size()) == group.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, what, ": ", parts->size(), " parts for a group of ", group.size(), " ranks"));
  }
  for (int member = 0; member < group.size(); ++member) {
    const auto index = static_cast<size_t>(member);
    const PartName to{kind, "send to", member};
    const PartName from{kind, "receive from", member};
    WEFT_RETURN_IF_ERROR(CheckPart(sends[index], dtype, to));
    WEFT_RETURN_IF_ERROR(CheckPart(receives[index], dtype, from));
    WEFT_RETURN_IF_ERROR(CheckTarget(receives[index], from));
  }
  const auto own = static_cast<size_t>(group.group_rank);
  const PartShape sent = PartShape::Of(sends[own]);
  const PartShape received = PartShape::Of(receives[own]);
  if (sent != received) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": rank ", group.group_rank,
                                                   " sends itself a part of shape ", ToString(sent),
                                                   ", but expects ", ToString(received)));
  }
  CollectivePlan plan;
  plan.kind = kind;
  plan.dtype = dtype;
  plan.sends = std::move(sends);
  plan.receives = std::move(receives);
  return plan;
}

int64_t BytesFromPeers(const ProcessGroup& group, const CollectivePlan& exchange) {
  int64_t elements = 0;
  for (int member = 0; member < group.size(); ++member) {
    if (member == group.group_rank) continue;
    elements += PartShape::Of(exchange.receives[static_cast<size_t>(member)]).elements();
  }
  return BytesOf(elements, exchange.dtype);
}

std::vector<TensorView> ContiguousParts(void* memory, DType dtype, const std::vector<int64_t>& counts) {
  std::vector<TensorView> parts;
  int64_t offset = 0;
  for (const int64_t count : counts) {
    auto* begin = static_cast<std::byte*>(memory) + BytesOf(offset, dtype);
    parts.push_back(TensorView::Contiguous(begin, dtype, {count}));
    offset += count;
  }
  return parts;
}

}  // namespace weft
