#include "weft/context_parallel/sequence_gather.h"

#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "context_parallel/hooks/sequence_over.h"
#include "context_parallel/schemes/sequence_attention.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kTokens = 1;  // Dim of the tokens.

class GatherAlongSequence final : public SlotExchange {
 public:
  GatherAlongSequence(SequenceExchange& exchange, std::string label)
      : exchange_(exchange), label_(std::move(label)) {}

  absl::StatusOr<PendingTensor> Launch(Invocation& invocation, const Tensor& local) override {
    if (exchange_.ranks() == 1) return PendingTensor();
    WEFT_ASSIGN_OR_RETURN(const DimSplit split, SplitOf(invocation));
    return exchange_.AllGather(local, split, label_);
  }

  absl::StatusOr<PendingTensor> Return(Invocation& invocation, const Tensor& gradient, DType dtype) override {
    WEFT_ASSIGN_OR_RETURN(const DimSplit split, SplitOf(invocation));
    BufferPool& pool = exchange_.pool();
    WEFT_ASSIGN_OR_RETURN(const Tensor wide, ConvertTo(pool, gradient, DType::kF32));
    WEFT_ASSIGN_OR_RETURN(PendingTensor sum,
                          exchange_.ReduceScatter(wide, split, absl::StrCat(label_, ".gradient")));
    if (dtype != DType::kF32) {
      sum.FinishWith([&pool, dtype](const Tensor& received) { return ConvertTo(pool, received, dtype); });
    }
    return sum;
  }

 private:
  absl::StatusOr<DimSplit> SplitOf(const Invocation& invocation) const {
    WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<const SequenceParts> sequence,
                          SequenceOver(invocation, exchange_.ranks(), exchange_.rank(), label_));
    DimSplit split{kTokens, {}};
    for (const TokenRuns& runs : sequence->parts) split.sizes.push_back(TokenCount(runs));
    return split;
  }

  SequenceExchange& exchange_;
  const std::string label_;
};

}  // namespace

std::shared_ptr<SlotExchange> SequenceGather(SequenceExchange& exchange, std::string label) {
  return std::make_shared<GatherAlongSequence>(exchange, std::move(label));
}

}  // namespace weft
