// Attention over a sequence that is split across the ranks of a context group.
//
// Each rank passes its own queries, keys and values and gets its own outputs. The ranks exchange tensors as
// the scheme says, on lanes of their own, at critical priority. Every scheme has two levels: an exchange of
// heads between inner ranks (Ulysses), then attention over the sequence between outer ranks
// (SequenceAttention). A level of one rank sends nothing.
//
// Launch starts the exchange of one tensor as soon as the tensor exists, so that it overlaps the computation
// of the next one. Forward consumes what was launched. Received tensors lie in node memory. In f32, exchanges
// copy nothing if the local tensors lie in node memory too.
//
// Thread safety: none; belongs to the thread that drives the model.
// Collective: Create, by all ranks of the engine. Launch, Forward and Backward, by all ranks of the group, in
//   the same order. Waiting for the tensors that Backward returns is local.
// Lifetime: engine and pool must outlive the object and everything it returned.
// Call order, for each call: Launch(kQuery), Launch(kKey) and Launch(kValue) in any order, then Forward, then
//   Backward if the call saves. Several calls may be in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "context_parallel/exchanges/head_exchange.h"
#include "context_parallel/exchanges/launched_tensor.h"
#include "context_parallel/layouts/head_split.h"
#include "context_parallel/schemes/sequence_attention.h"
#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/context_parallel/pending_tensor.h"
#include "weft/core/tensor.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/process_group.h"
#include "weft/nn/attention_mask.h"
#include "weft/nn/invocation.h"
#include "weft/nn/token_runs.h"

namespace weft {

// One call of attention. All ranks pass the same values, except for `own` of the sequence.
struct AttentionCall {
  AttentionMask mask;
  const AttentionKernels* kernels = nullptr;            // Null: AttentionForward and AttentionBackward.
  std::shared_ptr<const PairMask> pair_mask = nullptr;  // The invocation's. Null: hides no pair.
  float scale = 1.0F;                                   // Factor of the scores q·k.
  std::shared_ptr<const SequenceParts> sequence;
  int64_t heads = 0;
  int64_t kv_heads = 0;      // Divides `heads`.
  bool saves = true;         // A backward follows.
  bool returns_lse = false;  // Also exchanges the LSE, where peers compute some of this rank's queries.
  std::string label;         // Names the call in messages and traces: "layers.3.attention".
  uint64_t identity = 0;     // See OpOptions.
};

class AttentionParallel {
 public:
  using Result = SequenceAttention::Result;
  using Gradients = SequenceAttention::Gradients;

  // Takes the shared lanes of the scheme. Collective: all ranks of the engine, each with its own context
  // group. Errors: kInvalidArgument (ContextScheme::Validate, except for the mask), those of
  // CommEngine::SharedLane.
  static absl::StatusOr<std::unique_ptr<AttentionParallel>> Create(const ContextScheme& scheme,
                                                                   CommEngine& engine, BufferPool& pool,
                                                                   const ProcessGroup& context);

  // Starts the exchange of heads, then the gather or the first ring hop, as far as the scheme has them.
  // `local`: [batch, tokens, heads or kv_heads, dim], this rank's part of the sequence in its own order.
  // Strides are free, except that the innermost is 1. REQUIRES: no rank overwrites `local` any more; peers
  // may read it even after this rank's Forward. The caller may release it at any time: exchanges keep the
  // memory that they use. Errors: kInvalidArgument (mask, scale or shape contradict the call),
  // kResourceExhausted. Errors of the engine are returned by Forward.
  absl::StatusOr<LaunchedTensor> Launch(const AttentionCall& call, AttentionRole role, const Tensor& local);

  // `lse` of the result is undefined unless the call asks for it.
  // Errors, in addition: kInvalidArgument (the shapes of q, k and v contradict each other).
  absl::StatusOr<Result> Forward(const AttentionCall& call, LaunchedTensor q, LaunchedTensor k,
                                 LaunchedTensor v);

  // `saved`: as returned by Forward. `dout`: shaped like `out`, with the same requirements as `local` of
  // Launch. Returns gradients shaped like q, k and v, contiguous, in their dtypes. Errors, in addition:
  // kFailedPrecondition (the call did not save).
  absl::StatusOr<Gradients> Backward(const AttentionCall& call, Tensors saved, const Tensor& dout);

 private:
  // A call, split into the parts of both levels.
  struct Levels {
    HeadSplit heads;
    std::vector<int64_t> inner_tokens = {};  // Tokens of each rank of this rank's inner group.
    SequenceCall outer = {};
  };

  // `inner`: absent if the inner level has one rank. `ranks`, `rank`: of the whole context group.
  AttentionParallel(BufferPool& pool, int ranks, int rank, std::optional<LevelLane> inner,
                    std::unique_ptr<SequenceAttention> outer);
  absl::StatusOr<Levels> SplitLevels(const AttentionCall& call);
  // The sequence over the outer ranks. Cached, since all layers of a model use the same sequence.
  std::shared_ptr<const SequenceParts> OuterSequence(const std::shared_ptr<const SequenceParts>& sequence);
  absl::Status CheckLocal(const AttentionCall& call, AttentionRole role, const Tensor& local) const;
  static HeadExchange::Partition PartitionOf(const Levels& levels, AttentionRole role);
  int inner_size() const { return inner_ ? inner_->size() : 1; }
  int inner_rank() const { return inner_ ? inner_->rank() : 0; }
  // Waits for the exchange of heads. REQUIRES: the caller keeps `launched` until the outer level is done with
  // the returned input.
  absl::StatusOr<SequenceAttention::Input> OuterInput(LaunchedTensor& launched) const;
  // Exchange the outer level's result, or one of its gradients, back to this rank's tokens of all heads.
  absl::Status GatherResultHeads(const AttentionCall& call, const Levels& levels, Result& result) const;
  absl::Status GatherGradientHeads(const AttentionCall& call, const Levels& levels, AttentionRole role,
                                   DType dtype, PendingTensor& gradient) const;

  BufferPool* pool_;
  int ranks_;
  int rank_;
  std::optional<LevelLane> inner_;
  std::optional<HeadExchange> exchange_;  // Present if `inner_` is.
  std::unique_ptr<SequenceAttention> outer_;
  std::shared_ptr<const SequenceParts> cached_sequence_, cached_outer_sequence_;
};

}  // namespace weft
