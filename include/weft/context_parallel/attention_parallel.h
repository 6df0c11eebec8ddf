// Attention whose sequence lies over the ranks of a context group: one rank's queries, keys and values go in,
// its output comes out, and the ranks exchange what the scheme says on lanes of their own, as critical
// traffic.
//
// Launch begins the exchange of a tensor as soon as it exists, so that it travels while the next one is made.
// Forward takes what was launched. Everything received lies in node memory; nothing is copied on the way in
// f32 where local tensors lie there too.
//
// Thread safety: none; the thread that drives the model.
// Collective: Make…, Launch, Forward and Backward, by all ranks of the group, in the same order. To wait for
//   what Backward returns is each rank's own business.
// Lifetime: engine and pool must outlive it, and what it returned.
// Call order, for each call: Launch(kQuery) Launch(kKey) Launch(kValue), in any order, then Forward, then
//   Backward if the call saves. Several calls may be under way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

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

enum class AttentionRole : uint8_t { kQuery, kKey, kValue };
// "q", "k", "v".
std::string_view Name(AttentionRole role);

// One use of attention; the same on all ranks but for its sequence's `own`.
struct AttentionCall {
  AttentionMask mask;
  float scale = 1.0F;  // Of the scores.
  std::shared_ptr<const SequenceParts> sequence;
  int64_t heads = 0;
  int64_t kv_heads = 0;      // Divides `heads`.
  bool saves = true;         // Whether a backward follows.
  bool returns_lse = false;  // Exchanges the log-sum-exps too, where ranks have others' queries.
  std::string label;         // For messages and traces: "layers.3.attention".
  uint64_t identity = 0;     // See OpOptions.
};

// What Launch began.
struct LaunchedTensor {
  Tensor local;
  // What is under way for it, each stage behind the one before: the exchange of heads, then the gather or the
  // ring's first hop. None where the tensor stays.
  std::vector<PendingTensor> stages = {};
};

class AttentionParallel {
 public:
  virtual ~AttentionParallel() = default;

  // `local`: [batch, tokens, heads or kv_heads, dim], this rank's part of the sequence in its order, with any
  // strides but an innermost of 1. Nobody may overwrite it from here on: peers may read it after this rank's
  // Forward has ended. To let go of it is free: exchanges keep the memory that they use. Errors:
  // kInvalidArgument (a mask, a scale or a shape that contradicts the call), kResourceExhausted; the engine's
  // come out of Forward.
  virtual absl::StatusOr<LaunchedTensor> Launch(const AttentionCall& call, AttentionRole role,
                                                const Tensor& local) = 0;

  struct Result {
    Tensor out;  // [batch, tokens, heads, value_dim], the queries' dtype, contiguous, in node memory.
    Tensor lse;  // [batch, heads, tokens], f32; undefined unless asked for.
    // For Backward; empty unless the call saves. May hold `out`, which must not be overwritten.
    Tensors saved = {};
  };
  // Errors, besides: kInvalidArgument (tensors that contradict each other).
  virtual absl::StatusOr<Result> Forward(const AttentionCall& call, LaunchedTensor q, LaunchedTensor k,
                                         LaunchedTensor v) = 0;

  // Like q, k and v, contiguous.
  struct Gradients {
    PendingTensor dq = {}, dk = {}, dv = {};
  };
  // `dout`: like out, with any strides but an innermost of 1. As with local tensors, nobody may overwrite it,
  // and to let go of it is free.
  virtual absl::StatusOr<Gradients> Backward(const AttentionCall& call, Tensors saved,
                                             const Tensor& dout) = 0;
};

// Makes the lanes of the scheme; collective over all ranks of the engine's bootstrap, each naming its own
// group. Errors: kInvalidArgument (ContextScheme::Validate's but for the mask's), kResourceExhausted.
absl::StatusOr<std::unique_ptr<AttentionParallel>> MakeAttentionParallel(const ContextScheme& scheme,
                                                                         CommEngine& engine, BufferPool& pool,
                                                                         const ProcessGroup& context);

}  // namespace weft
