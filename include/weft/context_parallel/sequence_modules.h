// Modules at the ends of a region of a model whose sequence is split over ranks: SplitSequence enters it,
// GatherSequence leaves it. Outside of the region every rank computes alike, on whole tensors.
//
// Inputs: any number of tensors of any dtype, each with the tokens along `seq_dim`; undefined tensors stay
//   undefined. SplitSequence takes whole tensors, in the order of the sequence, and returns this rank's
//   tokens, in the rank's order. GatherSequence is the inverse. Outputs are contiguous; those of
//   SplitSequence, and the gradients of GatherSequence, may share memory with what the module was given.
//   REQUIRES: the caller does not overwrite them.
// Backward: SplitSequence gathers the gradients of the ranks' tokens, GatherSequence takes those of this
//   rank's tokens out of the whole gradient. Both multiply by `scale`, see GradientScale. An undefined
//   gradient stays undefined, on all ranks.
// Saves: nothing.
// Collective: the backward of SplitSequence and the forward of GatherSequence, by all ranks of the exchange.
// Errors: kFailedPrecondition (no layout), kInvalidArgument (a tensor without the tokens of the layout; a
//   layout for another number of ranks), those of SequenceExchange.
// Lifetime: the exchange must outlive the module.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "weft/context_parallel/sequence_exchange.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/nn/module.h"

namespace weft {

struct SequenceModuleOptions {
  int seq_dim = 1;  // Negative: counted from the end.
  GradientScale scale = GradientScale::kNone;
};

// Base of both modules.
class SequenceLayoutModule : public Module {
 public:
  SequenceLayoutModule(std::string name, SequenceExchange& exchange, const SequenceModuleOptions& options)
      : Module(std::move(name)), exchange_(exchange), options_(options) {}

  // The layout of the sequence, in any order and with any documents. Set it before the forward, and do not
  // change it until the backward is done.
  void SetLayout(std::shared_ptr<const SequenceLayout> layout) { layout_ = std::move(layout); }

 protected:
  using Exchange =
      std::function<absl::StatusOr<PendingTensor>(const Tensor& tensor, int dim, const std::string& label)>;
  // Starts the exchange of each tensor along its sequence dim, then waits for all. `whole`: the tensors have
  // all tokens, not those of this rank.
  absl::StatusOr<Tensors> ExchangeAll(const Tensors& tensors, bool whole, const Exchange& exchange) const;

  SequenceExchange& exchange_;
  const SequenceModuleOptions options_;
  std::shared_ptr<const SequenceLayout> layout_;
};

class SplitSequence : public SequenceLayoutModule {
 public:
  SplitSequence(std::string name, SequenceExchange& exchange, const SequenceModuleOptions& options = {})
      : SequenceLayoutModule(std::move(name), exchange, options) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

class GatherSequence : public SequenceLayoutModule {
 public:
  GatherSequence(std::string name, SequenceExchange& exchange, const SequenceModuleOptions& options = {})
      : SequenceLayoutModule(std::move(name), exchange, options) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

}  // namespace weft
