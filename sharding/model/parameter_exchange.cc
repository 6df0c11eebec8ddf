#include "weft/sharding/parameter_exchange.h"

#include <utility>

#include "sharding/group/param_group.h"
#include "sharding/model/sharded_groups_parts.h"
#include "sharding/pipeline/comm_context.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {
namespace {

OpOptions OptionsOf(const Parameter& parameter) {
  // The identity names the parameter: ranks that take parameters in different orders get an error.
  return {Priority::kCritical, Hash64(parameter.name), parameter.name};
}

}  // namespace

ParameterExchange::ParameterExchange(ShardedGroups& groups, CommContext& context)
    : groups_(groups), context_(context), shard_group_(context.lanes().shard_group()) {}

absl::StatusOr<std::unique_ptr<ParameterExchange>> ParameterExchange::Create(
    ShardedGroups& groups, const std::function<bool(const Parameter&)>& selects) {
  const ShardedGroupsParts parts(groups);
  CommContext& context = parts.context;
  if (context.lanes().shards_optimizer_over_replicas()) {
    return absl::InvalidArgumentError(
        "an exchange of whole parameters needs shard groups that hold what they update: leave "
        "shard_optimizer_over_replicas off");
  }
  std::unique_ptr<ParameterExchange> exchange(new ParameterExchange(groups, context));
  const int ranks = exchange->shard_group_.size();
  for (int number = 0; number < groups.group_count(); ++number) {
    const ParamGroup& group = *parts.groups[static_cast<size_t>(number)];
    const size_t first = exchange->items_.size();
    std::vector<int> item_of(group.parameters().size(), -1);  // From `first` on.
    for (size_t i = 0; i < group.parameters().size(); ++i) {
      const Parameter& parameter = *group.parameters()[i];
      if (!group.layout().parameters()[i].trainable || !selects(parameter)) continue;
      if (&group.lanes() != &context.lanes()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "parameter '", parameter.name, "' has a mesh of its own (mesh_of), but an exchange of ",
            "whole parameters has the model's mesh: do not select it"));
      }
      if (group.dtypes().master != DType::kF32) {
        return absl::InvalidArgumentError(absl::StrCat(
            "parameter group '", group.name(), "' has ", ToAbsl(Name(group.dtypes().master)),
            " masters, but an exchange of whole parameters has f32: do not select parameters of this group"));
      }
      item_of[i] = static_cast<int>(exchange->items_.size() - first);
      exchange->items_.push_back(
          {&parameter, number, static_cast<int>(i), std::vector<ShardPiece>(static_cast<size_t>(ranks))});
    }
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ShardPiece& piece : group.layout().Pieces(rank)) {
        const int item = item_of[static_cast<size_t>(piece.parameter)];
        if (item < 0) continue;
        exchange->items_[first + static_cast<size_t>(item)].pieces[static_cast<size_t>(rank)] = piece;
      }
    }
  }
  if (ranks == 1) return exchange;
  CommEngine& engine = exchange->engine();
  WEFT_ASSIGN_OR_RETURN(exchange->there_,
                        engine.SharedLane(exchange->shard_group_, LanePurpose::kOptimizer, 0));
  WEFT_ASSIGN_OR_RETURN(exchange->back_,
                        engine.SharedLane(exchange->shard_group_, LanePurpose::kOptimizer, 1));
  return exchange;
}

bool ParameterExchange::has_replicas() const { return engine().bootstrap().size() > shard_group_.size(); }

CommEngine& ParameterExchange::engine() const { return context_.state().engine(); }

std::vector<int64_t> ParameterExchange::HeldElements(int item) const {
  std::vector<int64_t> held;
  for (const ShardPiece& piece : at(item).pieces) held.push_back(piece.elements());
  return held;
}

bool ParameterExchange::has_gradient(int item) const {
  return groups_.ReducedParameters(at(item).group)[static_cast<size_t>(at(item).index)];
}

bool ParameterExchange::is_whole_at(const Item& item, int rank) const {
  return item.pieces[static_cast<size_t>(rank)].elements() == item.parameter->elements();
}

std::vector<TensorView> ParameterExchange::WholeViews(const Move& move) const {
  const Item& item = at(move.item_);
  std::vector<TensorView> views(item.pieces.size());
  if (!is_own(move)) return views;
  auto* const whole = reinterpret_cast<float*>(move.whole_.data());
  for (size_t rank = 0; rank < views.size(); ++rank) {
    const ShardPiece& piece = item.pieces[rank];
    if (piece.elements() == 0) continue;
    views[rank] = {whole + piece.start, DType::kF32, {piece.runs, piece.run_length}, {piece.run_stride, 1}};
  }
  return views;
}

std::vector<TensorView> ParameterExchange::OwnViews(const Move& move) const {
  const Item& item = at(move.item_);
  std::vector<TensorView> views(item.pieces.size());
  const ShardPiece& piece = item.pieces[static_cast<size_t>(shard_group_.group_rank)];
  if (piece.elements() == 0) return views;
  views[static_cast<size_t>(move.owner_)] =
      TensorView::Contiguous(move.own_, DType::kF32, {piece.runs, piece.run_length});
  return views;
}

absl::Status ParameterExchange::Collect(int item, int owner, float* own, Move& move) {
  WEFT_RETURN_IF_ERROR(context_.state().status());
  move.item_ = item;
  move.owner_ = owner;
  move.own_ = own;
  if (is_whole_at(at(item), owner)) return absl::OkStatus();
  if (is_own(move)) {
    const auto bytes = static_cast<size_t>(parameter(item).elements()) * sizeof(float);
    absl::StatusOr<Buffer> whole = context_.memory().AcquireShard(bytes);
    if (!whole.ok()) return context_.state().Fail(whole.status());
    move.whole_ = *std::move(whole);
  }
  move.there_ = context_.state().engine().AllToAll(there_, OwnViews(move), WholeViews(move), DType::kF32,
                                                   OptionsOf(parameter(item)));
  return absl::OkStatus();
}

absl::StatusOr<float*> ParameterExchange::AwaitWhole(Move& move) {
  if (!is_own(move)) return nullptr;
  if (!move.there_.valid()) return move.own_;
  WEFT_RETURN_IF_ERROR(context_.state().AwaitReady(move.there_));
  return reinterpret_cast<float*>(move.whole_.data());
}

absl::Status ParameterExchange::Spread(Move& move) {
  WEFT_RETURN_IF_ERROR(context_.state().status());
  if (!move.there_.valid()) return absl::OkStatus();
  OpOptions options = OptionsOf(parameter(move.item_));
  options.gate = &move.there_;  // Peers have read this rank's elements before they are replaced.
  move.back_ = context_.state().engine().AllToAll(back_, WholeViews(move), OwnViews(move), DType::kF32,
                                                  std::move(options));
  return absl::OkStatus();
}

absl::Status ParameterExchange::Finish(Move& move) {
  if (!move.back_.valid()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(context_.state().AwaitRelease(move.there_));
  WEFT_RETURN_IF_ERROR(context_.state().AwaitRelease(move.back_));
  move = Move();
  return absl::OkStatus();
}

}  // namespace weft
