// Exchange of whole parameters: collects values of a parameter from the shards of its shard group at one
// rank, and spreads them again. For updates that need a whole matrix, such as Muon's.
//
//   WEFT_ASSIGN_OR_RETURN(auto exchange, ParameterExchange::Create(model->sharded_groups(), selects));
//   for (int i = 0; i < exchange->count(); ++i) {
//     ParameterExchange::Move move;
//     WEFT_RETURN_IF_ERROR(exchange->Collect(i, owner, shard.grad, move));
//     WEFT_ASSIGN_OR_RETURN(float* const whole, exchange->AwaitWhole(move));  // Null on other ranks.
//     if (whole != nullptr) Transform(whole);
//     WEFT_RETURN_IF_ERROR(exchange->Spread(move));
//     WEFT_RETURN_IF_ERROR(exchange->Finish(move));
//   }
//
// Each replica exchanges its own copies. A parameter that its owner holds whole is not moved at all.
//
// Thread safety: none; one thread drives an exchange.
// Collective: Create, by all ranks of the mesh; Collect and Spread, by all ranks of a shard group, each in
//   one order. Several moves may be under way.
// Lifetime: the groups must outlive the exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/process_group.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {

class CommContext;

class ParameterExchange {
 public:
  // One parameter on its way. Lifetime: until Finish, or after an error until the engine's end.
  class Move {
   private:
    friend class ParameterExchange;
    int item_ = -1;
    int owner_ = 0;
    float* own_ = nullptr;
    Buffer whole_;  // Destroyed after the Works that use it.
    Work there_, back_;
  };

  // For the trainable parameters that `selects` selects, in the order of the groups.
  // Errors: kInvalidArgument (replicas share the optimizer, so a shard group does not hold what it updates; a
  // selected parameter has a mesh of its own, or a master that is not f32).
  static absl::StatusOr<std::unique_ptr<ParameterExchange>> Create(
      ShardedGroups& groups, const std::function<bool(const Parameter&)>& selects);

  int count() const { return static_cast<int>(items_.size()); }
  const Parameter& parameter(int item) const { return *at(item).parameter; }
  const ProcessGroup& shard_group() const { return shard_group_; }
  // True if there are several shard groups, of which each has all parameters.
  bool has_replicas() const;
  // The engine of the groups.
  CommEngine& engine() const;
  // Elements that each rank of the shard group holds.
  std::vector<int64_t> HeldElements(int item) const;
  // True if the parameter has a reduced gradient. The same on all ranks, also on those that hold nothing of
  // it.
  bool has_gradient(int item) const;

  // Starts to collect a parameter's values at shard rank `owner`. `own`: this rank's elements, in the order
  // of its shard; null if it holds none. They must stay unchanged until Spread replaces them.
  absl::Status Collect(int item, int owner, float* own, Move& move);
  // Waits for the whole values, row-major, which the owner may change. Null on other ranks.
  absl::StatusOr<float*> AwaitWhole(Move& move);
  // Starts to send the owner's values to the ranks' own elements.
  absl::Status Spread(Move& move);
  // Waits until this rank's elements are valid, and gives the memory back.
  absl::Status Finish(Move& move);

 private:
  struct Item {
    const Parameter* parameter;
    int group, index;                // Number of the group, and of the parameter in it.
    std::vector<ShardPiece> pieces;  // By shard rank; empty if it holds nothing.
  };

  ParameterExchange(ShardedGroups& groups, CommContext& context);
  const Item& at(int item) const { return items_[static_cast<size_t>(item)]; }
  bool is_whole_at(const Item& item, int rank) const;
  bool is_own(const Move& move) const { return move.owner_ == shard_group_.group_rank; }
  // Views of the owner's matrix by shard rank; undefined ones on other ranks.
  std::vector<TensorView> WholeViews(const Move& move) const;
  // View of this rank's elements for the owner alone.
  std::vector<TensorView> OwnViews(const Move& move) const;

  ShardedGroups& groups_;
  CommContext& context_;
  const ProcessGroup& shard_group_;
  LaneId there_, back_;
  std::vector<Item> items_;
};

}  // namespace weft
