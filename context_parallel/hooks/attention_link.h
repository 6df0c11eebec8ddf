// Connection between one input of a split attention and the module that makes it, the *source*.
//
// The source's hooks launch the exchange of the input in forward. In backward they add the gradient of the
// input to the gradients of the source's outputs.
//
// Note [Source calls]
// Problem: within one invocation a source may run several times, feed several attentions, or run again when
// backward recomputes activations. Each exchange and each gradient must reach the call that it belongs to.
// Rule: every forward of the source gets a number. The exchange that it launches is kept with its local
// tensor until an attention is called with exactly that tensor. The attention remembers the number and hands
// the gradient of the input to the call with that number. Backward runs in the reverse order of forward, so
// each backward of the source takes the last call and adds all gradients that were handed to it. Each link
// keeps its own records in the invocation, which destroys them.
//
// Note [Negative-zero gradients]
// Problem: the gradient of an input with a source is still in flight when the backward of the attention
// returns.
// Rule: the attention returns a tensor of negative zeros instead, and the source adds the real gradient
// later. Modules between the attention and the source may add to the tensor: x + -0 has the bits of x for
// every x. With +0 instead, x = -0 would become +0.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "context_parallel/schemes/attention_parallel.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/nn/attention.h"

namespace weft {

// View of [batch, tokens, features], or of a range of its features, as [batch, tokens, heads, features /
// heads].
TensorView SplitHeads(const TensorView& view, int64_t heads,
                      const std::optional<AttentionSource::Features>& features);

class AttentionLink {
 public:
  using Launcher = std::function<absl::StatusOr<LaunchedTensor>(Invocation&, const Tensor& local)>;

  // Calls `launch` with the input as [batch, tokens, heads, dim].
  AttentionLink(const AttentionSource& source, int64_t heads, AttentionLayout layout, Launcher launch);
  ~AttentionLink();
  AttentionLink(const AttentionLink&) = delete;
  AttentionLink& operator=(const AttentionLink&) = delete;

  struct ConsumedInput {
    LaunchedTensor launched;
    std::optional<int64_t> call;  // Number of the source's call; unset if no backward follows.
  };
  // Returns what the source launched for exactly this tensor, and ends the loan of the tensor; nullopt if the
  // source did not make it.
  std::optional<ConsumedInput> Consume(Invocation& invocation, const Tensor& local);
  // Hands the gradient [batch, tokens, heads, dim] of a consumed input to the source's call.
  absl::Status ReturnGradient(Invocation& invocation, int64_t call, PendingTensor gradient);

 private:
  struct Launch {
    LaunchedTensor tensor;
    std::optional<int64_t> call;
  };
  // State of one link in an invocation.
  struct Records {
    std::deque<Launch> launched;  // Not consumed yet.
    std::vector<int64_t> calls;   // Calls of the source whose backward has not run.
    // Inputs that were consumed without a backward, although the source will be recomputed. Nothing will
    // consume the exchanges that the recomputation launches.
    int64_t consumed_without_backward = 0;
  };
  struct Gradient {
    const AttentionLink* link;
    PendingTensor tensor;
  };
  struct Call {
    int64_t number;
    std::vector<Shape> output_shapes;
    std::vector<Gradient> gradients;
  };
  // State of one source in an invocation, shared by its links.
  struct SourceCalls {
    std::vector<Call> calls;
    int64_t next_number = 0;
  };

  std::optional<size_t> OutputIndex(size_t outputs) const;
  absl::StatusOr<TensorView> InputOf(const TensorView& output) const;
  // Records the call of the source that has just run and returns its number.
  int64_t RecordCall(Invocation& invocation, Records& records, const Tensors& outputs) const;
  absl::Status AfterForward(Invocation& invocation, const Tensors& outputs);
  absl::Status BeforeBackward(Invocation& invocation, Tensors& output_gradients);
  // Drops what this call of the source launched and no attention consumed. Returns an error unless the launch
  // came from a recomputation.
  absl::Status DropUnconsumed(Invocation& invocation, Records& records, int64_t call) const;
  // Adds the received gradient of the input to the gradient of the output that contains the input. `gradient`
  // may be undefined.
  absl::StatusOr<Tensor> Sum(const Tensor& gradient, const Tensor& received, const Shape& output_shape) const;

  AttentionSource source_;
  int64_t heads_;
  AttentionLayout layout_;
  Launcher launch_;
  std::string loan_purpose_;  // Names the loan of outputs in error messages.
  std::vector<Module::HookId> hooks_;
};

}  // namespace weft
