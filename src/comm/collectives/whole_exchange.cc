#include "src/comm/collectives/whole_exchange.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "src/comm/base/operation_record.h"
#include "src/comm/base/part_shape.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// More parts take longer than if each rank moves its own.
constexpr int64_t kMostParts = 256;

// The largest data that one rank moves for all. Parts are not claimed. Ranks with hardware threads of their
// own run at the same time, so each moves its own parts if they have LeastClaimedBytes.
int64_t MostBytes(const OperationContext& context) {
  const int64_t most = MaxWholeBytes(context.options);
  if (context.shares_core) return most;
  return std::min(most, context.placement.size() * LeastClaimedBytes(context.options));
}

}  // namespace

void WholeExchange::Describe(const OperationContext& context, PartRow* table) {
  const GroupPlacement& placement = context.placement;
  const auto describe = [&](PartRow& row, const TensorView& part) {
    if (IsEmptyPart(part)) return;
    const std::optional<NodeAddress> address = AddressOf(context.node, part);
    is_reachable_ = is_reachable_ && address.has_value();
    row = RowOf(part, address.value_or(Descriptor::kNoAddress));
  };
  for (int member = 0; member < placement.size(); ++member) {
    describe(table[placement.local_size() + placement.IndexInNode(member)],
             plan_.receives[static_cast<size_t>(member)]);
  }
  describe(table[placement.IndexInNode(placement.me())], plan_.sends[static_cast<size_t>(placement.me())]);
}

absl::Status WholeExchange::BeginAsLast(OperationContext& context, std::vector<const PartRow*> tables) {
  const GroupPlacement& placement = context.placement;
  tables_ = std::move(tables);
  int64_t elements = 0;
  int64_t parts = 0;
  for (int receiver = 0; receiver < placement.size(); ++receiver) {
    for (int sender = 0; sender < placement.size(); ++sender) {
      const PartShape& sent = SendRow(sender, receiver).shape;
      const PartShape& expected = ReceiveRow(receiver, sender).shape;
      if (sent != expected) {
        return PartMismatch(*context.record, placement.BootstrapRank(sender), sent,
                            placement.BootstrapRank(receiver), expected);
      }
      elements += sent.elements();
      parts += sent.elements() > 0 ? 1 : 0;
    }
  }
  const int64_t bytes = BytesOf(elements, plan_.dtype);
  if (bytes > MostBytes(context) || parts > kMostParts) {
    last_.LeaveToAll(context);
    return absl::OkStatus();
  }
  copies_.reserve(static_cast<size_t>(parts));
  Moved outcome = Moved::kForAll;
  for (int receiver = 0; receiver < placement.size(); ++receiver) {
    if (receiver == placement.me() || IsReachable(receiver)) {
      for (int sender = 0; sender < placement.size(); ++sender)
        WEFT_RETURN_IF_ERROR(AddCopy(context, sender, receiver));
    } else {
      outcome = Moved::kForReachable;
    }
  }
  last_.MoveAsLast(context, outcome, {static_cast<size_t>(bytes), static_cast<size_t>(bytes)}, [this] {
    for (const PartCopy& copy : copies_) copy.range.Run(copy.source, copy.target, 0, copy.range.elements());
  });
  return absl::OkStatus();
}

bool WholeExchange::IsReachable(int member) const {
  const auto has_address = [](const PartRow& row) {
    return row.is_empty() || row.address != Descriptor::kNoAddress;
  };
  if (!has_address(SendRow(member, member))) return false;
  for (int sender = 0; sender < static_cast<int>(tables_.size()); ++sender) {
    if (!has_address(ReceiveRow(member, sender))) return false;
  }
  return true;
}

absl::Status WholeExchange::AddCopy(const OperationContext& context, int sender, int receiver) {
  const PartRow& sent = SendRow(sender, receiver);
  if (sent.is_empty()) return absl::OkStatus();
  const auto view_of = [&](const PartRow& row) {
    return ViewOf(row, context.node.Map(row.address), plan_.dtype);
  };
  // This rank reaches its own tensors wherever they are.
  const int me = context.placement.me();
  const TensorView source =
      sender == me && receiver == me ? plan_.sends[static_cast<size_t>(me)] : view_of(sent);
  const TensorView target =
      receiver == me ? plan_.receives[static_cast<size_t>(sender)] : view_of(ReceiveRow(receiver, sender));
  WEFT_ASSIGN_OR_RETURN(RangeCopy range, RangeCopy::Make(source, target));
  copies_.push_back(
      {std::move(range), static_cast<const std::byte*>(source.data), static_cast<std::byte*>(target.data)});
  return absl::OkStatus();
}

bool WholeExchange::Poll(const OperationContext& context) {
  is_decided_ = is_decided_ || last_.Poll(context);
  return is_decided_;
}

bool WholeExchange::moves_own() const {
  const bool is_last = !tables_.empty();
  const bool is_left_out = last_.outcome() == Moved::kForReachable && !is_last && !is_reachable_;
  return last_.outcome() == Moved::kForNone || is_left_out;
}

void WholeExchange::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  if (!is_decided_) last_.AddAwaited(context, ranks);
}

}  // namespace weft
