// The move of a small all-to-all on one node by the rank that arrives last.
//
// That rank reads the part tables of all ranks, and copies all parts if they are small together: see Note
// [Part tables] and Note [Last arrival]. Otherwise each rank moves its own parts.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include <absl/status/status.h>

#include "src/comm/base/group_placement.h"
#include "src/comm/collectives/last_arrival.h"
#include "src/comm/collectives/part_table.h"
#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/operation.h"
#include "weft/core/range_copy.h"

namespace weft {

// One rank's side of such a move.
//
// Call order: Describe, before the table is published. The rank that arrived last calls BeginAsLast. Each
//   rank polls until it is decided which parts it moves itself.
// Lifetime: that of the operation, as tasks hold a pointer to it.
class WholeExchange final {
 public:
  // `plan` is that of the all-to-all, and must outlive this. REQUIRES: the group is on one node.
  explicit WholeExchange(const CollectivePlan& plan) : plan_(plan) {}
  // Not copyable: tasks hold a pointer.
  WholeExchange(const WholeExchange&) = delete;
  WholeExchange& operator=(const WholeExchange&) = delete;

  // Rows of a part table: those of the parts that the rank sends, then those of the parts that it receives.
  static size_t TableRows(const GroupPlacement& placement) {
    return 2 * static_cast<size_t>(placement.local_size());
  }
  // Describes the parts that this rank receives, and the one that it sends itself. The caller describes those
  // that it sends to peers.
  void Describe(const OperationContext& context, PartRow* table);

  // Moves all parts if they are small together, else leaves them to all. `tables` are those that the ranks of
  // the group have published, by group rank. REQUIRES: this rank arrived last.
  // Errors: kFailedPrecondition (two ranks disagree about the shape of a part).
  absl::Status BeginAsLast(OperationContext& context, std::vector<const PartRow*> tables);

  // Returns true once it is decided which parts this rank moves itself.
  bool Poll(const OperationContext& context);
  bool is_decided() const { return is_decided_; }
  // True if this rank moves what it receives, false if the last one has moved that. REQUIRES: is_decided.
  bool moves_own() const;
  // True if the last rank has moved all parts of all ranks.
  bool has_moved_all() const { return last_.outcome() == Moved::kForAll; }
  // Adds the bootstrap ranks for which this one waits until it is decided.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  // A copy of one part between two ranks of the node.
  struct PartCopy {
    RangeCopy range;
    const std::byte* source;
    std::byte* target;
  };

  // Rows of the published tables. REQUIRES: this rank arrived last.
  const PartRow& SendRow(int sender, int receiver) const {
    return tables_[static_cast<size_t>(sender)][receiver];
  }
  const PartRow& ReceiveRow(int receiver, int sender) const {
    return SendRow(receiver, static_cast<int>(tables_.size()) + sender);  // They follow those of sends.
  }
  // True if this rank can write everything that `member`, another rank, receives.
  bool IsReachable(int member) const;
  absl::Status AddCopy(const OperationContext& context, int sender, int receiver);

  const CollectivePlan& plan_;
  bool is_reachable_ = true;  // Peers can write everything that this rank receives.
  bool is_decided_ = false;
  LastArrival last_;
  // At the rank that arrived last; empty at others.
  std::vector<const PartRow*> tables_;  // By group rank.
  std::vector<PartCopy> copies_;
};

}  // namespace weft
