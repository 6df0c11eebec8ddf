// Outer level of a scheme: attention over a sequence that is split across ranks with the same heads.
//
// Its inputs are what the exchange of heads returns or, without an inner level, the local tensors.
// Each implementation exchanges keys and values, or queries, in its own way.
//
// Thread safety, Collective, Lifetime, Call order: as AttentionParallel.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "context_parallel/layouts/head_split.h"
#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/pending_tensor.h"
#include "weft/memory/buffer_pool.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/invocation.h"

namespace weft {

// One call of the outer level.
struct SequenceCall {
  AttentionProblem problem;
  const AttentionKernels* kernels = nullptr;      // REQUIRES: not null.
  std::shared_ptr<const SequenceParts> sequence;  // Over the ranks of the outer level.
  bool saves = true;
  bool returns_lse = false;
  bool f32_key_gradients = false;  // dk and dv must be f32. If false, the dtype of the keys is allowed too.
  std::string label;
  uint64_t identity = 0;

  // Options of one exchange of this call. `what` distinguishes it from the call's other exchanges.
  OpOptions Options(std::string_view what) const;
};

// Engine, pool and lane with which one level exchanges tensors.
struct LevelLane {
  CommEngine* engine;
  BufferPool* pool;
  LaneId lane;

  int size() const { return engine->group(lane).size(); }
  int rank() const { return engine->group(lane).group_rank; }
};

class SequenceAttention {
 public:
  struct Result {
    Tensor out;  // [batch, tokens, heads, value_dim], in the queries' dtype, contiguous, in node memory.
    Tensor lse;  // [batch, heads, tokens], f32.
    // Input of Backward; empty unless the call saves. It may hold `out`, which must not be overwritten then.
    Tensors saved = {};
  };
  // dq is in the queries' dtype; dk and dv are in f32 or in the keys' dtype.
  struct Gradients {
    PendingTensor dq = {}, dk = {}, dv = {};
  };

  virtual ~SequenceAttention() = default;

  // Starts the exchange of `own` [batch, own tokens, heads, dim] after `after`, or at once if `after` is
  // null. Returns an invalid PendingTensor if no peer needs `own`.
  virtual absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role,
                                               const Tensor& own, const Work* after) = 0;

  struct Input {
    Tensor own;                  // Its contents are valid.
    PendingTensor pending = {};  // As returned by Launch.
  };
  virtual absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) = 0;
  virtual absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                             const Tensor& dout) = 0;
};

// The outer level has one rank, which has the whole sequence.
std::unique_ptr<SequenceAttention> MakeLocalAttention(BufferPool& pool);
// Gathers keys and values and keeps them for backward.
std::unique_ptr<SequenceAttention> MakeGatherAttention(const LevelLane& lane);
// As MakeGatherAttention; in addition, each rank computes the query tail of its mirror rank (see QueryTails).
std::unique_ptr<SequenceAttention> MakeBalancedGatherAttention(const LevelLane& lane);
// Ring with rotation by all-gather: each pass gathers all blocks while it computes the own block.
std::unique_ptr<SequenceAttention> MakeGatheredRingAttention(const LevelLane& lane);
// Ring with rotation by shift: blocks move from rank to rank.
std::unique_ptr<SequenceAttention> MakeShiftedRingAttention(const LevelLane& lane);

// Indices into Result::saved. Implementations append their own tensors from kSavedCount on.
enum SavedIndex : uint8_t { kSavedQ, kSavedK, kSavedV, kSavedOut, kSavedLse, kSavedCount };

// Empty tensors for the results of queries `q` and values `v`.
absl::StatusOr<Tensor> NewOutput(BufferPool& pool, const Tensor& q, const Tensor& v, DType dtype);
absl::StatusOr<Tensor> NewLse(BufferPool& pool, const Tensor& q);
// AttentionDelta of the output and its gradient: [batch, heads, tokens], f32.
Tensor ComputeDelta(const Tensor& out, const Tensor& dout);
// Converts `out` to the queries' dtype. If the call saves, saves the tensors that every backward needs.
absl::StatusOr<SequenceAttention::Result> MakeResult(BufferPool& pool, const SequenceCall& call,
                                                     const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const Tensor& out, const Tensor& lse);
// `tensor` itself if it has the dtype, otherwise a converted copy.
absl::StatusOr<Tensor> ConvertTo(BufferPool& pool, const Tensor& tensor, DType dtype);

}  // namespace weft
