// One input of a split attention, and the module that it comes from. The module's hooks launch the exchange
// of the input in forward, and take in what came back for it in backward.
//
// Note [Calls of a source]
// A source may be called several times in an invocation, feed several attentions, or run again when backward
// recomputes it. Each call in forward is noted; what it launched waits, with its tensor, until an attention
// is called with that very tensor. The attention remembers the call and hands the gradient that it launched
// in backward to it; the source's backward, whose calls come in reverse order, takes the last call off and
// adds all that was handed to it. Each link has its own notes, in the invocation: they go when the invocation
// goes.
//
// Note [Zeros to add to]
// What attention's backward returns for an input with a source is a tensor of negative zeros: whoever adds to
// it on the way to the source adds to nothing, and x + -0 is x to the bit, whatever the sign of x.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/context_parallel/attention_parallel.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/nn/attention.h"

namespace weft {

// [batch, tokens, features] or its range of features, as [batch, tokens, heads, features / heads].
TensorView SplitHeads(const TensorView& view, int64_t heads,
                      const std::optional<AttentionSource::Features>& features);

class AttentionLink {
 public:
  using Launcher = std::function<absl::StatusOr<LaunchedTensor>(Invocation&, const Tensor& local)>;

  // `launch` is given the input as [batch, tokens, heads, dim].
  AttentionLink(const AttentionSource& source, int64_t heads, AttentionLayout layout, Launcher launch);
  ~AttentionLink();
  AttentionLink(const AttentionLink&) = delete;
  AttentionLink& operator=(const AttentionLink&) = delete;

  struct ConsumedInput {
    LaunchedTensor launched;
    std::optional<int64_t> call;  // Of the source, if a backward follows.
  };
  // What was launched for exactly this tensor, which is lent until then; nothing if the source has not made
  // it.
  std::optional<ConsumedInput> Take(Invocation& invocation, const Tensor& local);
  // Hands over what comes back for an input that was taken, as [batch, tokens, heads, dim].
  absl::Status Return(Invocation& invocation, int64_t call, PendingTensor gradient);

 private:
  struct Launch {
    LaunchedTensor tensor;
    std::optional<int64_t> call;
  };
  // What one link knows in an invocation.
  struct Notes {
    std::deque<Launch> launched;
    std::vector<int64_t> calls;  // Of the source, by number, whose backward has not come.
    // ConsumedInput from a source that will be recomputed, by an attention that will not: the recompute
    // launches for nobody.
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
  // What the links of one source share in an invocation.
  struct SourceCalls {
    std::vector<Call> calls;
    int64_t next_number = 0;
  };

  std::optional<size_t> OutputIndex(size_t outputs) const;
  absl::StatusOr<TensorView> InputOf(const TensorView& output) const;
  // The number of the source's call that has just run.
  int64_t NoteCall(Invocation& invocation, Notes& notes, const Tensors& outputs) const;
  absl::Status AfterForward(Invocation& invocation, const Tensors& outputs);
  absl::Status BeforeBackward(Invocation& invocation, Tensors& output_gradients);
  // Nobody takes any more what this call of the source launched. An error, if somebody should have.
  absl::Status DropUntaken(Invocation& invocation, Notes& notes, int64_t call) const;
  // The gradient of an output, which may be undefined, and what has come back for the input that lies in it.
  absl::StatusOr<Tensor> Sum(const Tensor& gradient, const Tensor& received, const Shape& output_shape) const;

  AttentionSource source_;
  int64_t heads_;
  AttentionLayout layout_;
  Launcher launch_;
  std::string use_;  // What outputs are lent for.
  std::vector<Module::HookId> hooks_;
};

}  // namespace weft
