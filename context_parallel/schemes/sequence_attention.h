// The outer level of a scheme: attention whose sequence lies over the ranks of a group, all of which have the
// same heads. What a Ulysses group has exchanged, or a whole scheme's local tensors where there is none.
//
// Thread safety, Collective, Lifetime, Call order: as AttentionParallel.
#pragma once

#include <memory>
#include <string_view>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/attention_parallel.h"
#include "weft/context_parallel/pending_tensor.h"
#include "weft/memory/buffer_pool.h"
#include "weft/nn/attention_kernel.h"

namespace weft {

struct SequenceCall {
  AttentionProblem problem;
  std::shared_ptr<const SequenceParts> sequence;  // Over this level's ranks.
  bool saves = true;
  bool returns_lse = false;
  bool f32_key_gradients = false;  // Else of the keys' dtype will do.
  std::string label;
  uint64_t identity = 0;

  // Of one exchange of this call; `what` tells it from the others.
  OpOptions Options(std::string_view what) const;
};

// What exchanges need.
struct LevelLane {
  CommEngine* engine;
  BufferPool* pool;
  LaneId lane;

  int size() const { return engine->group(lane).size(); }
  int me() const { return engine->group(lane).group_rank; }
};

class SequenceAttention {
 public:
  using Result = AttentionParallel::Result;
  using Gradients = AttentionParallel::Gradients;

  virtual ~SequenceAttention() = default;

  // Begins to move `own` [batch, own tokens, heads, dim] to where it is needed, after `after` (null: it is
  // there already); nothing if it stays.
  virtual absl::StatusOr<PendingTensor> Launch(const SequenceCall& call, AttentionRole role,
                                               const Tensor& own, const Work* after) = 0;

  // `own` is there; `pending` is what Launch gave.
  struct Input {
    Tensor own;
    PendingTensor pending = {};
  };
  virtual absl::StatusOr<Result> Forward(const SequenceCall& call, Input q, Input k, Input v) = 0;
  // The gradients of keys and values are f32, or of their dtype; those of queries are of the queries' dtype.
  virtual absl::StatusOr<Gradients> Backward(const SequenceCall& call, const Tensors& saved,
                                             const Tensor& dout) = 0;
};

// One rank has the sequence.
std::unique_ptr<SequenceAttention> MakeLocalAttention(BufferPool& pool);
// Keys and values are gathered, and kept for backward.
std::unique_ptr<SequenceAttention> MakeGatherAttention(const LevelLane& lane);
// The same, and the tails of queries are computed by the rank that mirrors this one.
std::unique_ptr<SequenceAttention> MakeBalancedGatherAttention(const LevelLane& lane);
// A ring whose blocks come by one all-gather, behind the own block's computation, in each pass.
std::unique_ptr<SequenceAttention> MakeGatheredRingAttention(const LevelLane& lane);
// A ring whose blocks come from neighbour to neighbour.
std::unique_ptr<SequenceAttention> MakeShiftedRingAttention(const LevelLane& lane);

// Places in Result::saved; the implementations put what only they need behind these.
enum SavedPlace : uint8_t { kSavedQ, kSavedK, kSavedV, kSavedOut, kSavedLse, kSavedPlaces };

// What the implementations share: results, and what only a pass needs.
absl::StatusOr<Tensor> NewOutput(BufferPool& pool, const Tensor& q, const Tensor& v, DType dtype);
absl::StatusOr<Tensor> NewLse(BufferPool& pool, const Tensor& q);
Tensor DeltaOf(const Tensor& out, const Tensor& dout);
// `sum` in the queries' dtype; if the call saves, with all that every backward needs. `q`, `k`, `v`: own.
absl::StatusOr<SequenceAttention::Result> FinishForward(BufferPool& pool, const SequenceCall& call,
                                                        const Tensor& q, const Tensor& k, const Tensor& v,
                                                        const Tensor& sum, const Tensor& lse);
// `tensor`, or a copy of it in another dtype.
absl::StatusOr<Tensor> InDType(BufferPool& pool, const Tensor& tensor, DType dtype);

}  // namespace weft
