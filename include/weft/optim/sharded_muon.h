// Muon over the shards that this rank owns, with AdamW for the parameters that it does not suit.
//
//   WEFT_ASSIGN_OR_RETURN(auto optimizer,
//                         ShardedMuon::Create(*model, is_hidden_matrix, {.lr = 0.02}, {.lr = 3e-4}));
//   ...
//   optimizer->Step(*model, norm.factor);
//
// Note [A matrix at one rank]
// Problem: Muon's update needs a whole matrix, but ranks hold shards. If every rank computed the update of
//   every matrix, the work would not shrink with the number of ranks.
// Rule: momentum and weights stay sharded. In a step each matrix goes to one rank of the shard group, its
//   owner: the ranks send it their parts of the update's direction, the owner orthogonalizes it, and sends
//   the parts back. Owners are chosen once, so that they all have about the same work, and receive at most
//   (S - 1) / S of the elements in a group of S ranks. Several matrices are on their way at a time, so that
//   transfers overlap products.
// Why the update of equal gradients does not depend on the mesh, on processors of one kind: the direction is
//   elementwise, the owner sees the same whole matrix on any mesh, and Orthogonalize gives the same bits with
//   any thread count.
// Memory: a step overwrites the gradients of the matrices, which serve as buffers of the exchange. An owner
//   also has whole matrices: at most 4 S matrices, consecutive in the order of work, are under way at a time,
//   and it holds those of its own.
//
// Note [Replicas of one kind]
// Problem: each replica computes the updates in its own shard group. The bits of Orthogonalize depend on the
//   kind of processor, by the instructions that oneDNN uses. Replicas on processors of different kinds would
//   drift apart, a little in each step.
// Rule: if there are replicas, Create compares a hash of the result for fixed matrices over all ranks.
// Why all ranks: any of them may own a matrix. Without replicas their processors may differ: the result of
//   one owner reaches all ranks.
//
// The states are "momentum_buffer" of the matrices, and "exp_avg" and "exp_avg_sq" of the other parameters.
//
// Thread safety: none. Lifetime: the model must outlive the optimizer.
// Collective: Create and Step, by all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/optim/matrix_exchange.h"
#include "weft/optim/muon.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/optim/sharded_optimizer.h"

namespace weft {

class ShardedMuon : public ShardedOptimizer {
 public:
  static constexpr size_t kMatrices = 0;  // The parameter group of the matrices.

  // Parameters that `is_matrix` selects take Muon, and are group 0. The others take AdamW, with the options
  // of the first of `adamw_groups` that matches, otherwise `adamw` (group 1). The groups follow in order.
  // Errors: kInvalidArgument (a selected parameter does not have two dims; replicas share the optimizer;
  // there are replicas, and the bits of Orthogonalize differ between ranks).
  static absl::StatusOr<std::unique_ptr<ShardedMuon>> Create(
      ShardedModel& model, const std::function<bool(const Parameter&)>& is_matrix, const MuonOptions& muon,
      const AdamWOptions& adamw, const std::vector<AdamWParamGroup>& adamw_groups = {});
  ~ShardedMuon() override;

 private:
  ShardedMuon(absl::Span<const ShardView> shards, std::unique_ptr<MatrixExchange> exchange,
              const std::function<bool(const Parameter&)>& is_matrix, const MuonOptions& muon,
              const AdamWOptions& adamw, const std::vector<AdamWParamGroup>& adamw_groups);
  bool updates_groups_alone() const override { return false; }
  absl::Status BeforeUpdates(absl::Span<const ShardView> shards,
                             absl::Span<const OptimizerGroupStep> groups) override;
  void Update(size_t group, int64_t update, const OptimizerGroupStep& step,
              absl::Span<const OptimizerSlice> slices) override;

  const MuonOptions muon_;
  std::vector<AdamWOptions> adamw_;  // By group, from group 1 on.
  std::unique_ptr<MatrixExchange> exchange_;
};

}  // namespace weft
