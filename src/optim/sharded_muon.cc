#include "weft/optim/sharded_muon.h"

#include <algorithm>
#include <map>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/optim/matrix_owners.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr size_t kMomentum = 0;  // Numbers of states.
constexpr size_t kFirstMoment = 1;

std::vector<std::vector<size_t>> StatesOfGroups(size_t adamw_groups) {
  std::vector<std::vector<size_t>> states(adamw_groups + 2, {kFirstMoment, kFirstMoment + 1});
  states[ShardedMuon::kMatrices] = {kMomentum};
  return states;
}

std::vector<MatrixTurn> TurnsOf(const ParameterExchange& exchange, const MuonOptions& options) {
  std::vector<MatrixWork> matrices;
  for (int i = 0; i < exchange.count(); ++i) {
    const Shape& shape = exchange.parameter(i).shape;
    matrices.push_back({OrthogonalizeOperations(options, shape[0], shape[1]), exchange.HeldElements(i)});
  }
  return AssignMatrices(matrices, exchange.shard_group().size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedMuon>> ShardedMuon::Create(
    ShardedModel& model, const std::function<bool(const Parameter&)>& is_matrix, const MuonOptions& muon,
    const AdamWOptions& adamw, const std::vector<AdamWParamGroup>& adamw_groups) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ParameterExchange> exchange,
                        ParameterExchange::Create(model, is_matrix));
  for (int i = 0; i < exchange->count(); ++i) {
    const Parameter& parameter = exchange->parameter(i);
    if (parameter.shape.size() == 2) continue;
    return absl::InvalidArgumentError(absl::StrCat("Muon updates matrices, but '", parameter.name,
                                                   "' has the shape ", ToString(parameter.shape),
                                                   ": select parameters with two dims only"));
  }
  return std::unique_ptr<ShardedMuon>(
      new ShardedMuon(model.Shards(), std::move(exchange), is_matrix, muon, adamw, adamw_groups));
}

ShardedMuon::ShardedMuon(absl::Span<const ShardView> shards, std::unique_ptr<ParameterExchange> exchange,
                         const std::function<bool(const Parameter&)>& is_matrix, const MuonOptions& muon,
                         const AdamWOptions& adamw, const std::vector<AdamWParamGroup>& adamw_groups)
    : ShardedOptimizer(shards,
                       {{"momentum_buffer", "exp_avg", "exp_avg_sq"}, StatesOfGroups(adamw_groups.size())},
                       [&](const Parameter& parameter) {
                         return is_matrix(parameter) ? kMatrices : 1 + FirstMatch(parameter, adamw_groups);
                       }),
      muon_(muon),
      adamw_{adamw},
      exchange_(std::move(exchange)),
      turns_(TurnsOf(*exchange_, muon_)) {
  for (const AdamWParamGroup& group : adamw_groups) adamw_.push_back(group.options);
}

ShardedMuon::~ShardedMuon() = default;

absl::Status ShardedMuon::BeforeUpdates(absl::Span<const ShardView> shards,
                                        absl::Span<const OptimizerGroupStep> groups) {
  const OptimizerGroupStep& step = groups[kMatrices];
  if (step.frozen) return absl::OkStatus();
  std::map<const Parameter*, float*> directions;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (GroupOfShard(i) != kMatrices || shards[i].grad == nullptr) continue;
    MuonDirection(muon_, step.gradient_scale, shards[i].grad, StateOfShard(i, kMomentum),
                  shards[i].elements());
    directions[shards[i].parameter] = shards[i].grad;
  }
  std::vector<float*> of_matrices;
  for (int i = 0; i < exchange_->count(); ++i) {
    const auto found = directions.find(&exchange_->parameter(i));
    of_matrices.push_back(found == directions.end() ? nullptr : found->second);
  }
  return OrthogonalizeAll(of_matrices);
}

absl::Status ShardedMuon::OrthogonalizeAll(absl::Span<float* const> directions) {
  std::vector<MatrixTurn> turns;
  std::copy_if(turns_.begin(), turns_.end(), std::back_inserter(turns), [this](const MatrixTurn& turn) {
    return exchange_->has_gradient(static_cast<int>(turn.matrix));
  });
  // Matrices that are collected ahead of the one that is computed. As many may still be on their way back.
  const size_t ahead = 2 * static_cast<size_t>(exchange_->shard_group().size());
  std::vector<ParameterExchange::Move> moves(turns.size());
  size_t next = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    for (; next < std::min(i + ahead, turns.size()); ++next) {
      if (next >= 2 * ahead) WEFT_RETURN_IF_ERROR(exchange_->Finish(moves[next - 2 * ahead]));
      const MatrixTurn& turn = turns[next];
      WEFT_RETURN_IF_ERROR(exchange_->Collect(static_cast<int>(turn.matrix), turn.owner,
                                              directions[turn.matrix], moves[next]));
    }
    WEFT_ASSIGN_OR_RETURN(float* const whole, exchange_->AwaitWhole(moves[i]));
    if (whole != nullptr) {
      const Shape& shape = exchange_->parameter(static_cast<int>(turns[i].matrix)).shape;
      Orthogonalize(muon_, whole, shape[0], shape[1]);
    }
    WEFT_RETURN_IF_ERROR(exchange_->Spread(moves[i]));
  }
  for (ParameterExchange::Move& move : moves) WEFT_RETURN_IF_ERROR(exchange_->Finish(move));
  return absl::OkStatus();
}

void ShardedMuon::Update(size_t group, int64_t update, const OptimizerGroupStep& step,
                         absl::Span<const OptimizerSlice> slices) {
  if (group != kMatrices) {
    UpdateByAdamW(adamw_[group - 1], update, step, slices, kFirstMoment);
    return;
  }
  MuonOptions options = muon_;
  options.lr = step.lr.value_or(options.lr);
  for (const OptimizerSlice& slice : slices) {
    MuonUpdate(options, MuonLrFactor(options.lr_scale, slice.parameter->shape), slice.param, slice.grad,
               slice.count);
  }
}

}  // namespace weft
