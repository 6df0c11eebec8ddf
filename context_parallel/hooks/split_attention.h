// Operator of an attention whose sequence is split: computes it with AttentionParallel. Exchanges are
// launched by the sources of the inputs, or by the attention itself.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "context_parallel/hooks/source_link.h"
#include "context_parallel/schemes/attention_parallel.h"
#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/context_parallel.h"

namespace weft {

class SplitAttention final : public AttentionOperator {
 public:
  // State shared by all split attentions of a model.
  struct Shared {
    CommEngine& engine;
    ProcessGroup group;
    std::unique_ptr<AttentionParallel> parallel;
    ContextParallel::Counters counters;
    AttentionKernels kernels = {};
  };

  SplitAttention(const Attention& attention, const AttentionNeighbors& neighbors, Shared& shared);

  absl::StatusOr<Tensors> Forward(Invocation& invocation, const Attention& attention,
                                  const Tensors& inputs) override;
  absl::StatusOr<Tensors> Backward(Invocation& invocation, const Attention& attention,
                                   const Tensors& output_gradients) override;

 private:
  static constexpr int kRoles = 3;
  // A forward whose backward has not run.
  struct Pass {
    AttentionCall call;
    std::array<SourceLink::Origin, kRoles> origins;
  };
  using Passes = std::vector<Pass>;

  absl::StatusOr<AttentionCall> MakeCall(Invocation& invocation, int64_t heads, int64_t kv_heads) const;
  absl::StatusOr<LaunchedTensor> Launch(const AttentionCall& call, AttentionRole role, const Tensor& local);

  const Attention& attention_;
  Shared& shared_;
  std::array<std::unique_ptr<SourceLink>, kRoles> links_;  // [role]
};

}  // namespace weft
