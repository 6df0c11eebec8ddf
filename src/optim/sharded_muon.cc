#include "weft/optim/sharded_muon.h"

#include <map>
#include <utility>

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

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedMuon>> ShardedMuon::Create(
    ShardedModel& model, const std::function<bool(const Parameter&)>& is_matrix, const MuonOptions& muon,
    const AdamWOptions& adamw, const std::vector<AdamWParamGroup>& adamw_groups) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MatrixExchange> exchange,
                        MatrixExchange::Create(model.sharded_groups(), is_matrix, muon));
  WEFT_RETURN_IF_ERROR(exchange->AgreeOnBits([&muon] { return HashOfOrthogonalize(muon); }));
  return std::unique_ptr<ShardedMuon>(
      new ShardedMuon(model.Shards(), std::move(exchange), is_matrix, muon, adamw, adamw_groups));
}

ShardedMuon::ShardedMuon(absl::Span<const ShardView> shards, std::unique_ptr<MatrixExchange> exchange,
                         const std::function<bool(const Parameter&)>& is_matrix, const MuonOptions& muon,
                         const AdamWOptions& adamw, const std::vector<AdamWParamGroup>& adamw_groups)
    : ShardedOptimizer(shards,
                       {{"momentum_buffer", "exp_avg", "exp_avg_sq"}, StatesOfGroups(adamw_groups.size())},
                       [&](const Parameter& parameter) {
                         return is_matrix(parameter) ? kMatrices : 1 + FirstMatch(parameter, adamw_groups);
                       }),
      muon_(muon),
      adamw_{adamw},
      exchange_(std::move(exchange)) {
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
  return exchange_->TransformAll(of_matrices, [this](int matrix, float* whole) {
    const Shape& shape = exchange_->parameter(matrix).shape;
    Orthogonalize(muon_, whole, shape[0], shape[1]);
  });
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
