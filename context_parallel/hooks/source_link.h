// Connection between an exchanged tensor and the module that makes it, the *source*.
//
// The source's hooks launch the exchange of the tensor in forward. In backward they add the gradient of the
// tensor to the gradients of the source's outputs. A link without a source has no hooks; its tensor is
// exchanged by who takes it.
//
// Note [Source calls]
// Problem: within one invocation a source may run several times, feed several links, or run again when
// backward recomputes activations. Each exchange and each gradient must reach the call that it belongs to.
// Rule: every forward of the source gets a number. The exchange that it launches is kept with its local
// tensor until a consumer takes exactly that tensor. The consumer remembers the number and hands the gradient
// of the tensor to the call with that number. Backward runs in the reverse order of forward, so each backward
// of the source adds all gradients that were handed to the last call. The sum is formed in the memory of a
// received gradient, without a copy, so they can be added once: the call is kept until that backward has
// succeeded, and a repeated one is an error. Each link keeps its own records in the invocation, which
// destroys them.
//
// Note [Negative-zero gradients]
// Problem: the gradient of a tensor with a source is still in flight when the backward of the consumer
// returns.
// Rule: the consumer returns a tensor of negative zeros instead, and the source adds the real gradient
// later. Modules between the consumer and the source may add to the tensor: x + -0 has the bits of x for
// every x. With +0 instead, x = -0 would become +0.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "context_parallel/exchanges/launched_tensor.h"
#include "weft/context_parallel/exchange_hooks.h"
#include "weft/nn/attention.h"

namespace weft {

// The tensor of an attention as [batch, tokens, heads, dim], and such a tensor in the layout, contiguous.
Tensor AsBshd(const Tensor& tensor, AttentionLayout layout);
Tensor InLayout(const Tensor& bshd, AttentionLayout layout);

// View of [batch, tokens, features], or of a range of its features, as [batch, tokens, heads, features /
// heads].
TensorView HeadsOf(const TensorView& view, int64_t heads,
                   const std::optional<ExchangeSource::Features>& features);

// See Note [Negative-zero gradients].
Tensor NegativeZeros(DType dtype, const Shape& shape);

class SourceLink {
 public:
  using Launcher = std::function<absl::StatusOr<LaunchedTensor>(Invocation&, const Tensor& local)>;

  struct Options {
    std::string tensor;  // Describes the tensor in messages: "k of layers.3.attention".
    ExchangeSource source = {};
    // Shape of the tensor in the source's output: see ExchangeHooks::Slot. Consumers take it in the layout.
    int64_t heads = 0;
    AttentionLayout layout = AttentionLayout::kBshd;
    // Called with the tensor as [batch, tokens, heads, dim], or without heads as it is.
    Launcher launch = {};
    // Called before a backward of the source collects the gradients of a call, to hand over what is missing.
    std::function<absl::Status(Invocation&, int64_t call)> complete = {};
  };
  explicit SourceLink(Options options);
  ~SourceLink();
  SourceLink(const SourceLink&) = delete;
  SourceLink& operator=(const SourceLink&) = delete;

  const std::string& tensor() const { return options_.tensor; }

  // Destination of the gradient of a tensor that was taken.
  struct Origin {
    std::optional<int64_t> call;  // Number of the source's call. Unset: the consumer returns the gradient.
    DType dtype = DType::kF32;
    Shape shape = {};  // In the layout of the consumer.
  };
  struct ConsumedInput {
    LaunchedTensor launched;
    Origin origin;
  };
  // Returns what the source launched for exactly this tensor, and ends the reading of the tensor. If the
  // source did not make it, calls `launch`. `input`: in the layout of the consumer.
  using LocalLauncher = absl::FunctionRef<absl::StatusOr<LaunchedTensor>(const Tensor& local)>;
  absl::StatusOr<ConsumedInput> ConsumeInput(Invocation& invocation, const Tensor& input,
                                             LocalLauncher launch);
  // Hands the gradient of `local` to the source's call, and returns negative zeros for the consumer to
  // return. Without a call, waits for the gradient and returns it. The result has the layout of the consumer.
  absl::StatusOr<Tensor> ReturnGradient(Invocation& invocation, const Origin& origin, PendingTensor gradient);
  absl::Status HandToSource(Invocation& invocation, int64_t call, PendingTensor gradient);

 private:
  struct Launch {
    LaunchedTensor tensor;
    std::optional<int64_t> call;
    bool is_recomputed;
  };
  // State of one link in an invocation.
  struct Records {
    std::deque<Launch> launched;  // Not taken yet.
    std::vector<int64_t> calls;   // Calls of the source whose backward has not succeeded.
    // Tensors that were taken from a source that will be recomputed, less those that were taken or dropped
    // since from its recomputations. A consumer that is not recomputed with the source does not take them.
    int64_t taken_before_recompute = 0;
  };
  struct Gradient {
    const SourceLink* link;
    PendingTensor tensor;
  };
  struct Call {
    int64_t number;
    std::vector<Shape> output_shapes;
    std::vector<const SourceLink*> links;
    std::vector<Gradient> gradients = {};
    bool has_given_gradients = false;  // To a backward, which may have failed.
  };
  // State of one source in an invocation, shared by its links.
  struct SourceCalls {
    std::vector<Call> calls;
    int64_t next_number = 0;

    Call* Find(int64_t number);
  };

  std::optional<size_t> OutputIndex(size_t outputs) const;
  absl::StatusOr<TensorView> InputOf(const TensorView& output) const;
  // Records the call of the source that has just run and returns its number.
  int64_t RecordCall(Invocation& invocation, Records& records, const Tensors& outputs) const;
  absl::Status AfterForward(Invocation& invocation, const Tensors& outputs);
  // Gradients of the last outputs may be missing. A refused backward changes nothing. Errors: those of
  // Invocation::CheckGradients, kFailedPrecondition (the backward has failed after this had given gradients).
  absl::Status BeforeBackward(Invocation& invocation, Tensors& output_gradients);
  // Forgets the call of the source.
  void AfterBackward(Invocation& invocation) const;
  std::optional<ConsumedInput> ConsumeLaunched(Invocation& invocation, const Tensor& local) const;
  // Drops what this call of the source launched and no consumer took. Returns an error unless the launch
  // came from a recomputation.
  absl::Status DropUntaken(Invocation& invocation, Records& records, int64_t call) const;
  // Adds the received gradient of the tensor to the gradient of the output that contains it. `gradient` may
  // be undefined.
  absl::StatusOr<Tensor> Sum(const Tensor& gradient, const Tensor& received, const Shape& output_shape) const;

  Options options_;
  std::string reader_purpose_;  // Says in error messages who reads the outputs.
  std::vector<Module::HookId> hooks_;
};

}  // namespace weft
