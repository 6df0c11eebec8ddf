// Operator of an attention whose sequence is split: computes it with AttentionParallel. Exchanges are
// launched by the sources of the inputs, or by the attention itself.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "context_parallel/hooks/attention_link.h"
#include "weft/comm/comm_engine.h"

namespace weft {

class SplitAttention final : public AttentionOperator {
 public:
  // State shared by all split attentions of a model.
  struct Shared {
    CommEngine& engine;
    ProcessGroup group;
    std::unique_ptr<AttentionParallel> parallel;
    ContextParallel::Counters counters;
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
    DType dtype = DType::kF32;
    std::array<Shape, kRoles> shapes;  // Of the inputs, in the layout of the module.
    std::array<std::optional<int64_t>, kRoles> source_calls;
  };
  using Passes = std::vector<Pass>;

  absl::StatusOr<AttentionCall> MakeCall(Invocation& invocation, int64_t heads, int64_t kv_heads) const;
  absl::StatusOr<LaunchedTensor> Launch(const AttentionCall& call, AttentionRole role, const Tensor& local);
  // Consumes what a source launched; without a source, launches the exchange here.
  absl::StatusOr<AttentionLink::ConsumedInput> ConsumeOrLaunch(Invocation& invocation,
                                                               const AttentionCall& call, int role,
                                                               const Tensor& local);
  // Hands the gradient to the source and returns negative zeros; without a source, waits for the gradient.
  absl::StatusOr<Tensor> DeliverGradient(Invocation& invocation, const Pass& pass, int role,
                                         PendingTensor gradient);

  const Attention& attention_;
  Shared& shared_;
  std::array<std::unique_ptr<AttentionLink>, kRoles> links_;  // [role]; null without a source.
};

}  // namespace weft
