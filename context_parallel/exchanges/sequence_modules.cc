#include "weft/context_parallel/sequence_modules.h"

#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "weft/context_parallel/sequence_parts.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
absl::StatusOr<Tensors> SequenceLayoutModule::ExchangeAll(const Tensors& tensors, bool whole,
                                                          const Exchange& exchange) const {
  if (layout_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(name(), " has no layout of the sequence: call SetLayout before the pass"));
  }
  if (layout_->ranks() != exchange_.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": the layout is for ", layout_->ranks(),
                                                   " ranks, but the group has ", exchange_.ranks(),
                                                   ": create the SequenceLayout for the group"));
  }
  std::vector<PendingTensor> pending;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      pending.emplace_back();
      continue;
    }
    const absl::StatusOr<int> dim =
        whole ? CheckWhole(tensor.view(), options_.seq_dim, *layout_)
              : CheckPart(tensor.view(), options_.seq_dim, *layout_, exchange_.rank());
    WEFT_RETURN_IF_ERROR(Annotate(dim.status(), name()));
    WEFT_ASSIGN_OR_RETURN(pending.emplace_back(),
                          exchange(tensor, *dim, absl::StrCat(name(), ".", pending.size())));
  }
  Tensors results;
  for (PendingTensor& each : pending) {
    Tensor& result = results.emplace_back();
    if (!each.valid()) continue;
    WEFT_ASSIGN_OR_RETURN(result, each.Wait());
    if (!result.view().IsContiguous()) result = result.Copy();
  }
  return results;
}

absl::StatusOr<Tensors> SplitSequence::ForwardImpl(Invocation&, const Tensors& inputs) {
  return ExchangeAll(inputs, true, [this](const Tensor& whole, int dim, const std::string&) {
    return layout_->is_in_order() ? exchange_.Split(whole, DimSplit::ByRank(*layout_, dim))
                                  : exchange_.SplitPack(whole, PackSplit::Of(*layout_, dim));
  });
}

absl::StatusOr<Tensors> SplitSequence::BackwardImpl(Invocation&, const Tensors& output_gradients) {
  return ExchangeAll(output_gradients, false, [this](const Tensor& part, int dim, const std::string& label) {
    return layout_->is_in_order()
               ? exchange_.SplitBackward(part, DimSplit::ByRank(*layout_, dim), options_.scale, label)
               : exchange_.SplitPackBackward(part, PackSplit::Of(*layout_, dim), options_.scale, label);
  });
}

absl::StatusOr<Tensors> GatherSequence::ForwardImpl(Invocation&, const Tensors& inputs) {
  return ExchangeAll(inputs, false, [this](const Tensor& part, int dim, const std::string& label) {
    return layout_->is_in_order() ? exchange_.Gather(part, DimSplit::ByRank(*layout_, dim), label)
                                  : exchange_.GatherPack(part, PackSplit::Of(*layout_, dim), label);
  });
}

absl::StatusOr<Tensors> GatherSequence::BackwardImpl(Invocation&, const Tensors& output_gradients) {
  return ExchangeAll(output_gradients, true, [this](const Tensor& whole, int dim, const std::string&) {
    return layout_->is_in_order()
               ? exchange_.GatherBackward(whole, DimSplit::ByRank(*layout_, dim), options_.scale)
               : exchange_.GatherPackBackward(whole, PackSplit::Of(*layout_, dim), options_.scale);
  });
}

}  // namespace weft
