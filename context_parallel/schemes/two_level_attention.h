// Every scheme: an exchange of heads on the inner level, then attention over the sequence on the outer.
// Either level may be of one rank, and then does nothing.
#pragma once

#include <memory>
#include <optional>

#include "context_parallel/exchanges/head_exchange.h"
#include "context_parallel/layouts/head_split.h"
#include "context_parallel/schemes/sequence_attention.h"
#include "weft/context_parallel/attention_parallel.h"

namespace weft {

class TwoLevelAttention final : public AttentionParallel {
 public:
  // `inner`: none if the inner level has one rank. `ranks`: of both levels; this one is `rank` of them.
  TwoLevelAttention(BufferPool& pool, int ranks, int rank, std::optional<LevelLane> inner,
                    std::unique_ptr<SequenceAttention> outer);

  absl::StatusOr<LaunchedTensor> Launch(const AttentionCall& call, AttentionRole role,
                                        const Tensor& local) override;
  absl::StatusOr<Result> Forward(const AttentionCall& call, LaunchedTensor q, LaunchedTensor k,
                                 LaunchedTensor v) override;
  absl::StatusOr<Gradients> Backward(const AttentionCall& call, Tensors saved, const Tensor& dout) override;

 private:
  // What a call means on both levels.
  struct Levels {
    HeadSplit heads;
    std::vector<int64_t> inner_tokens = {};  // Of this rank's inner group.
    SequenceCall outer = {};
  };
  absl::StatusOr<Levels> LevelsOf(const AttentionCall& call);
  // The sequence over the outer ranks. The layers of a model use one sequence: it is joined once.
  std::shared_ptr<const SequenceParts> OuterOf(const std::shared_ptr<const SequenceParts>& sequence);
  absl::Status CheckLocal(const AttentionCall& call, AttentionRole role, const Tensor& local) const;
  static HeadExchange::Cut CutOf(const Levels& levels, AttentionRole role);
  int inner_size() const { return inner_ ? inner_->size() : 1; }
  int inner_rank() const { return inner_ ? inner_->me() : 0; }
  absl::StatusOr<SequenceAttention::Input> Arrived(LaunchedTensor& launched) const;
  // From what the outer level has, to what is local.
  absl::Status ResultToTokens(const AttentionCall& call, const Levels& levels, Result& result) const;
  absl::Status GradientToTokens(const AttentionCall& call, const Levels& levels, AttentionRole role,
                                DType dtype, PendingTensor& gradient) const;

  BufferPool* pool_;
  int ranks_;
  int rank_;
  std::optional<LevelLane> inner_;
  std::optional<HeadExchange> exchange_;  // If there is an inner level.
  std::unique_ptr<SequenceAttention> outer_;
  std::shared_ptr<const SequenceParts> joined_from_, joined_;
};

}  // namespace weft
