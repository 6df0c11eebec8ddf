// What an attention runs when its sequence is split: the exchanges of its scheme, in place or begun by its
// sources.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "context_parallel/hooks/attention_link.h"
#include "weft/comm/comm_engine.h"

namespace weft {

class SplitAttention final : public AttentionOperator {
 public:
  // What it shares with the other attentions of a model.
  struct Shared {
    CommEngine& engine;
    ProcessGroup group;
    std::unique_ptr<AttentionParallel> parallel;
    ContextParallel::Counters counters;
  };

  SplitAttention(const Attention& attention, const AttentionNeighbours& neighbours, Shared& shared);

  absl::StatusOr<Tensors> Forward(Invocation& invocation, const Attention& attention,
                                  const Tensors& inputs) override;
  absl::StatusOr<Tensors> Backward(Invocation& invocation, const Attention& attention,
                                   const Tensors& output_gradients) override;

 private:
  static constexpr int kRoles = 3;
  // A forward that a backward follows.
  struct Pass {
    AttentionCall call;
    DType dtype = DType::kF32;
    std::array<Shape, kRoles> shapes;  // Of the inputs, in the module's layout.
    std::array<std::optional<int64_t>, kRoles> source_calls;
  };
  using Passes = std::vector<Pass>;

  absl::StatusOr<AttentionCall> CallOf(Invocation& invocation, int64_t heads, int64_t kv_heads) const;
  absl::StatusOr<LaunchedTensor> Launch(const AttentionCall& call, AttentionRole role, const Tensor& local);
  // What a source has launched, or else launched here.
  absl::StatusOr<AttentionLink::ConsumedInput> TakeOrLaunch(Invocation& invocation, const AttentionCall& call,
                                                            int role, const Tensor& local);
  // Hands a gradient to the source, or waits for it.
  absl::StatusOr<Tensor> Deliver(Invocation& invocation, const Pass& pass, int role, PendingTensor gradient);

  const Attention& attention_;
  Shared& shared_;
  std::array<std::unique_ptr<AttentionLink>, kRoles> links_;  // By role; null without a source.
};

}  // namespace weft
