#include "context_parallel/hooks/exchange_slot.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor_view.h"

namespace weft {
namespace {

absl::StatusOr<Tensor> ToF32(const Tensor& tensor) {
  Tensor wide = Tensor::Empty(DType::kF32, tensor.shape());
  WEFT_RETURN_IF_ERROR(StridedCopy(tensor.view(), wide.view()));
  return wide;
}

absl::Status AddToSum(ExchangeSlot::Exchange& exchange, const Tensor& gradient) {
  if (!exchange.sum.defined()) {
    exchange.sum = gradient;
    return absl::OkStatus();
  }
  if (!exchange.owns_sum) {
    WEFT_ASSIGN_OR_RETURN(exchange.sum, ToF32(exchange.sum));
    exchange.owns_sum = true;
  }
  WEFT_ASSIGN_OR_RETURN(const Tensor added, ToF32(gradient));
  AddRun(added.view().data, DType::kF32, exchange.sum.view().data, DType::kF32, added.elements());
  return absl::OkStatus();
}

}  // namespace

ExchangeSlot::ExchangeSlot(ExchangeHooks::Slot slot, ExchangeHooks::Counters& counters)
    : name_(slot.name),
      reader_purpose_(
          absl::StrCat("the tensor of slot '", slot.name, "', which another consumer has yet to take")),
      exchange_(std::move(slot.exchange)),
      counters_(counters),
      link_(
          {.tensor = absl::StrCat("slot '", slot.name, "'"),
           .source = slot.source,
           .heads = slot.heads,
           .launch =
               [this](Invocation& invocation, const Tensor& local) {
                 return Launch(invocation, local, counters_.launched_by_sources);
               },
           .complete = [this](Invocation& invocation, int64_t call) { return Complete(invocation, call); }}) {
}

absl::StatusOr<LaunchedTensor> ExchangeSlot::Launch(Invocation& invocation, const Tensor& local,
                                                    int64_t& counter) {
  LaunchedTensor launched{.local = local};
  WEFT_ASSIGN_OR_RETURN(PendingTensor exchanged, exchange_->Launch(invocation, local));
  if (!exchanged.valid()) return launched;
  ++counter;
  launched.stages.push_back(std::move(exchanged));
  return launched;
}

absl::StatusOr<ExchangeSlot::Share> ExchangeSlot::Take(Invocation& invocation, const Module& consumer,
                                                       const Tensor& input) {
  if (!input.defined() || !IsFloating(input.dtype())) return Share();
  auto& records = invocation.State<Records>(this);
  const auto found = std::find_if(records.shared.begin(), records.shared.end(), [&](const Handle& exchange) {
    return IsSameView(exchange->local.view(), input.view());
  });
  Handle exchange;
  if (found != records.shared.end()) {
    exchange = *found;
  } else {
    WEFT_ASSIGN_OR_RETURN(exchange, TakeFirst(invocation, input));
  }
  if (exchange == nullptr || !invocation.is_saving()) return Share{exchange};
  return ExpectGradient(invocation, consumer, exchange);
}

ExchangeSlot::Share ExchangeSlot::ExpectGradient(Invocation& invocation, const Module& consumer,
                                                 const Handle& exchange) {
  const bool is_first = exchange->missing_gradients++ == 0;
  if (is_first && exchange->origin.call) {
    invocation.State<Records>(this).awaiting_gradients.push_back(exchange);
  } else if (is_first) {
    invocation.RequireBackward(consumer, [this, exchange] {
      if (!exchange->sum.defined()) return std::string();
      return absl::StrCat("which returns the gradient of slot '", name_, "' for all of its consumers: call ",
                          "this Backward, too, or give the slot a source");
    });
  }
  return {exchange, is_first};
}

absl::StatusOr<ExchangeSlot::Handle> ExchangeSlot::TakeFirst(Invocation& invocation, const Tensor& input) {
  WEFT_ASSIGN_OR_RETURN(SourceLink::ConsumedInput consumed,
                        link_.ConsumeInput(invocation, input, [&](const Tensor& local) {
                          return Launch(invocation, local, counters_.launched_by_consumers);
                        }));
  if (consumed.launched.stages.empty()) return Handle();
  auto exchange = std::make_shared<Exchange>();
  exchange->local = input;
  exchange->exchanged = std::move(consumed.launched.stages.back());
  exchange->origin = std::move(consumed.origin);
  exchange->unread = consumers_;
  invocation.AddReader(input, &reader_purpose_);
  invocation.State<Records>(this).shared.push_back(exchange);
  return exchange;
}

absl::StatusOr<Tensor> ExchangeSlot::Read(Invocation& invocation, const Share& share) {
  WEFT_ASSIGN_OR_RETURN(Tensor exchanged, share.exchange->exchanged.Wait());
  if (--share.exchange->unread == 0) {
    StopSharing(invocation, invocation.State<Records>(this), share.exchange);
  }
  return exchanged;
}

void ExchangeSlot::StopSharing(Invocation& invocation, Records& records, const Handle& exchange) const {
  if (std::erase(records.shared, exchange) == 0) return;
  invocation.RemoveReader(exchange->local, &reader_purpose_);
  exchange->local = Tensor();
  exchange->exchanged = PendingTensor();
}

absl::Status ExchangeSlot::AddGradient(const Share& share, const Tensor& gradient) {
  --share.exchange->missing_gradients;
  return gradient.defined() ? AddToSum(*share.exchange, gradient) : absl::OkStatus();
}

absl::Status ExchangeSlot::ReturnSum(Invocation& invocation, const Share& share) {
  Exchange& exchange = *share.exchange;
  const bool waits_for_others = !share.is_first || exchange.origin.call;
  if (waits_for_others && exchange.missing_gradients > 0) return absl::OkStatus();
  auto& records = invocation.State<Records>(this);
  StopSharing(invocation, records, share.exchange);
  std::erase(records.awaiting_gradients, share.exchange);
  return StartReturn(invocation, exchange);
}

absl::Status ExchangeSlot::StartReturn(Invocation& invocation, Exchange& exchange) {
  if (!exchange.sum.defined()) return absl::OkStatus();
  ++counters_.returned;
  WEFT_ASSIGN_OR_RETURN(exchange.returned,
                        exchange_->Return(invocation, exchange.sum, exchange.origin.dtype));
  exchange.sum = Tensor();
  exchange.owns_sum = false;
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ExchangeSlot::InputGradient(Invocation& invocation, const Share& share,
                                                   const Tensor& gradient) {
  Exchange& exchange = *share.exchange;
  if (exchange.returned.valid()) {
    return link_.ReturnGradient(invocation, exchange.origin, std::move(exchange.returned));
  }
  return gradient.defined() ? NegativeZeros(exchange.origin.dtype, exchange.origin.shape) : gradient;
}

absl::Status ExchangeSlot::Complete(Invocation& invocation, int64_t call) {
  auto& records = invocation.State<Records>(this);
  const auto found = std::find_if(records.awaiting_gradients.begin(), records.awaiting_gradients.end(),
                                  [call](const Handle& exchange) { return exchange->origin.call == call; });
  if (found == records.awaiting_gradients.end()) return absl::OkStatus();
  const Handle exchange = *found;
  records.awaiting_gradients.erase(found);
  StopSharing(invocation, records, exchange);
  WEFT_RETURN_IF_ERROR(StartReturn(invocation, *exchange));
  if (!exchange->returned.valid()) return absl::OkStatus();
  return link_.HandToSource(invocation, call, std::move(exchange->returned));
}

}  // namespace weft
