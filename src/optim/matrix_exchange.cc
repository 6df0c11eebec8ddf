#include "weft/optim/matrix_exchange.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/optim/matrix_owners.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/bootstrap.h"

namespace weft {
namespace {

std::vector<MatrixTurn> TurnsOf(const ParameterExchange& exchange, const MuonOptions& options) {
  std::vector<MatrixWork> matrices;
  for (int i = 0; i < exchange.count(); ++i) {
    const Shape& shape = exchange.parameter(i).shape;
    matrices.push_back({OrthogonalizeOperations(options, shape[0], shape[1]), exchange.HeldElements(i)});
  }
  return AssignMatrices(matrices, exchange.shard_group().size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixExchange>> MatrixExchange::Create(
    ShardedGroups& groups, const std::function<bool(const Parameter&)>& is_matrix,
    const MuonOptions& options) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ParameterExchange> exchange,
                        ParameterExchange::Create(groups, is_matrix));
  for (int i = 0; i < exchange->count(); ++i) {
    const Parameter& parameter = exchange->parameter(i);
    if (parameter.shape.size() == 2) continue;
    return absl::InvalidArgumentError(absl::StrCat("Muon updates matrices, but '", parameter.name,
                                                   "' has the shape ", ToString(parameter.shape),
                                                   ": select parameters with two dims only"));
  }
  return std::unique_ptr<MatrixExchange>(new MatrixExchange(std::move(exchange), options));
}

MatrixExchange::MatrixExchange(std::unique_ptr<ParameterExchange> exchange, const MuonOptions& options)
    : exchange_(std::move(exchange)), turns_(TurnsOf(*exchange_, options)) {}

MatrixExchange::~MatrixExchange() = default;

absl::Status MatrixExchange::AgreeOnBits(absl::FunctionRef<uint64_t()> hash) const {
  if (!exchange_->has_replicas()) return absl::OkStatus();
  const std::vector<OptionValue> options = {
      {"the hash of a transformed matrix", HashText(hash()),
       "replicas would drift apart; use processors of one kind, or set ONEDNN_MAX_CPU_ISA to instructions "
       "that all processors have (for example AVX2), and set the options of Muon"}};
  const CommEngine& engine = exchange_->engine();
  return AgreeOnOptions(engine.bootstrap(), "replicas of Muon", options, engine.timeout());
}

absl::Status MatrixExchange::TransformAll(absl::Span<float* const> own, Transform transform) {
  std::vector<MatrixTurn> turns;
  std::copy_if(turns_.begin(), turns_.end(), std::back_inserter(turns), [this](const MatrixTurn& turn) {
    return exchange_->has_gradient(static_cast<int>(turn.matrix));
  });
  // Matrices that are collected ahead of the one that is transformed. As many may still be on their way back.
  const size_t ahead = 2 * static_cast<size_t>(exchange_->shard_group().size());
  std::vector<ParameterExchange::Move> moves(turns.size());
  size_t next = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    for (; next < std::min(i + ahead, turns.size()); ++next) {
      if (next >= 2 * ahead) WEFT_RETURN_IF_ERROR(exchange_->Finish(moves[next - 2 * ahead]));
      const MatrixTurn& turn = turns[next];
      WEFT_RETURN_IF_ERROR(
          exchange_->Collect(static_cast<int>(turn.matrix), turn.owner, own[turn.matrix], moves[next]));
    }
    WEFT_ASSIGN_OR_RETURN(float* const whole, exchange_->AwaitWhole(moves[i]));
    if (whole != nullptr) transform(static_cast<int>(turns[i].matrix), whole);
    WEFT_RETURN_IF_ERROR(exchange_->Spread(moves[i]));
  }
  for (ParameterExchange::Move& move : moves) WEFT_RETURN_IF_ERROR(exchange_->Finish(move));
  return absl::OkStatus();
}

}  // namespace weft
