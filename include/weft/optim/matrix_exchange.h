// Exchange of the matrices that Muon orthogonalizes: each whole at one rank of its shard group, for the time
// of the transformation. See Note [A matrix at one rank] in weft/optim/sharded_muon.h.
//
// Thread safety: none. Lifetime: the groups must outlive it.
// Collective: Create and AgreeOnBits, by all ranks of the mesh; TransformAll, by all ranks of a shard group.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/optim/muon.h"
#include "weft/sharding/parameter_exchange.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {

struct MatrixTurn;

class MatrixExchange {
 public:
  // For the trainable parameters that `is_matrix` selects, in the order of the groups.
  // Errors: kInvalidArgument (a selected parameter does not have two dims; replicas share the optimizer).
  static absl::StatusOr<std::unique_ptr<MatrixExchange>> Create(
      ShardedGroups& groups, const std::function<bool(const Parameter&)>& is_matrix,
      const MuonOptions& options);
  ~MatrixExchange();

  int count() const { return exchange_->count(); }
  const Parameter& parameter(int matrix) const { return exchange_->parameter(matrix); }

  // OK if there are no replicas, or if the transformations of all ranks have the same bits: `hash` returns a
  // hash of results. See Note [Replicas of one kind] in weft/optim/sharded_muon.h.
  // Errors: kInvalidArgument (hashes differ; names two ranks and the remedy).
  absl::Status AgreeOnBits(absl::FunctionRef<uint64_t()> hash) const;

  // Transforms each matrix that has a reduced gradient. `own`: of each matrix, the elements that this rank
  // holds, null if it holds none; they become those of the result. `transform` gets a matrix and its number,
  // on its owner alone. Transfers overlap transformations.
  using Transform = absl::FunctionRef<void(int matrix, float* whole)>;
  absl::Status TransformAll(absl::Span<float* const> own, Transform transform);

 private:
  MatrixExchange(std::unique_ptr<ParameterExchange> exchange, const MuonOptions& options);

  std::unique_ptr<ParameterExchange> exchange_;
  std::vector<MatrixTurn> turns_;
};

}  // namespace weft
