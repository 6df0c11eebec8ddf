// Modules around an Attention in a chain: SplitHeads makes heads of columns, MergeHeads columns of heads.
//
//   chain.Add<Linear>("qkv", dim, 3 * dim);
//   chain.Add<SplitHeads>("split", /*parts=*/3, heads);  // q, k and v.
//   chain.Add<Attention>("attention");
//   chain.Add<MergeHeads>("merge", heads);
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

// Inputs: x [batch, tokens, parts * heads * head_dim]. Outputs: for each part its columns, in order, as
// [batch, tokens, heads, head_dim]: windows of x, which are not contiguous if there are several parts.
// Saves: nothing. Backward copies the gradients, which may have any strides, into one tensor.
// Errors: kInvalidArgument (the number of columns is not a multiple of parts * heads).
class SplitHeads : public Module {
 public:
  SplitHeads(std::string name, int64_t parts, int64_t heads)
      : Module(std::move(name)), parts_(parts), heads_(heads) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t parts_;
  int64_t heads_;
};

// Inputs: x [batch, tokens, heads, head_dim]. Outputs: the same memory as [batch, tokens, heads * head_dim].
// Saves: nothing.
class MergeHeads : public Module {
 public:
  MergeHeads(std::string name, int64_t heads) : Module(std::move(name)), heads_(heads) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t heads_;
};

}  // namespace weft
