#include "context_parallel/hooks/attention_link.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

bool SameTensor(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

}  // namespace

TensorView SplitHeads(const TensorView& view, int64_t heads,
                      const std::optional<AttentionSource::Features>& features) {
  const TensorView part = features ? view.Slice(2, features->first, features->count) : view;
  TensorView split = part;
  const int64_t head_dim = part.shape[2] / heads;
  split.shape = {part.shape[0], part.shape[1], heads, head_dim};
  split.strides = {part.strides[0], part.strides[1], head_dim * part.strides[2], part.strides[2]};
  return split;
}

AttentionLink::AttentionLink(const AttentionSource& source, int64_t heads, AttentionLayout layout,
                             Launcher launch)
    : source_(source),
      heads_(heads),
      layout_(layout),
      launch_(std::move(launch)),
      loan_purpose_(absl::StrCat(
          "an output of ", source.module->name(),
          " that is being exchanged for an attention: name the last module that writes the tensor as "
          "the attention's source, such as the rotary embedding")) {
  hooks_ = {source_.module->AddForwardPostHook([this](Module&, Invocation& invocation, Tensors& outputs) {
              return AfterForward(invocation, outputs);
            }),
            source_.module->AddBackwardPreHook([this](Module&, Invocation& invocation, Tensors& gradients) {
              return BeforeBackward(invocation, gradients);
            })};
}

AttentionLink::~AttentionLink() {
  for (const Module::HookId hook : hooks_) source_.module->RemoveHook(hook);
}

std::optional<size_t> AttentionLink::OutputIndex(size_t outputs) const {
  if (source_.output) return static_cast<size_t>(*source_.output);
  return outputs == 1 ? std::optional<size_t>(0) : std::nullopt;
}

absl::StatusOr<TensorView> AttentionLink::InputOf(const TensorView& output) const {
  if (output.shape.size() == 4 && !source_.features) return AsBshd(output, layout_);
  if (output.shape.size() == 3) {
    const auto [first, count] = source_.features.value_or(AttentionSource::Features{0, output.shape[2]});
    if (first >= 0 && count > 0 && first + count <= output.shape[2] && count % heads_ == 0) {
      return SplitHeads(output, heads_, source_.features);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "an output of ", source_.module->name(), " has the shape ", ToString(output.shape),
      ", which does not hold ", heads_, " heads at the given features: give the heads and features of an ",
      "output [batch, tokens, features], or name a module whose output has a dim of heads"));
}

int64_t AttentionLink::RecordCall(Invocation& invocation, Records& records, const Tensors& outputs) const {
  auto& source = invocation.State<SourceCalls>(source_.module);
  if (source.calls.size() == records.calls.size()) {  // Otherwise another link of the source recorded it.
    Call& call = source.calls.emplace_back();
    call.number = source.next_number++;
    for (const Tensor& output : outputs) call.output_shapes.push_back(output.shape());
  }
  records.calls.push_back(source.calls.back().number);
  return records.calls.back();
}

absl::Status AttentionLink::AfterForward(Invocation& invocation, const Tensors& outputs) {
  const std::optional<size_t> index = OutputIndex(outputs.size());
  if (!index) return absl::OkStatus();
  if (*index >= outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(source_.module->name(), " has ", outputs.size(),
                                                   " outputs, but an attention names output ", *index,
                                                   " as its source: name an existing one"));
  }
  const Tensor& output = outputs[*index];
  WEFT_ASSIGN_OR_RETURN(const TensorView input, InputOf(output.view()));
  WEFT_ASSIGN_OR_RETURN(LaunchedTensor launched, launch_(invocation, output.Window(input)));
  auto& records = invocation.State<Records>(this);
  std::optional<int64_t> call;
  if (invocation.is_saving()) call = RecordCall(invocation, records, outputs);
  invocation.AddReader(launched.local, &loan_purpose_);
  records.launched.push_back({std::move(launched), call});
  return absl::OkStatus();
}

std::optional<AttentionLink::ConsumedInput> AttentionLink::Consume(Invocation& invocation,
                                                                   const Tensor& local) {
  auto& records = invocation.State<Records>(this);
  const auto found = std::find_if(
      records.launched.begin(), records.launched.end(),
      [&](const Launch& launch) { return SameTensor(launch.tensor.local.view(), local.view()); });
  if (found == records.launched.end()) return std::nullopt;
  invocation.RemoveReader(local);
  ConsumedInput consumed{std::move(found->tensor), found->call};
  records.launched.erase(found);
  if (!consumed.call && invocation.is_saving()) ++records.consumed_without_backward;
  return consumed;
}

absl::Status AttentionLink::ReturnGradient(Invocation& invocation, int64_t call, PendingTensor gradient) {
  auto& calls = invocation.State<SourceCalls>(source_.module).calls;
  const auto found =
      std::find_if(calls.begin(), calls.end(), [&](const Call& each) { return each.number == call; });
  if (found == calls.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the backward of ", source_.module->name(),
                     " ran before that of an attention that takes its output: run backward in the reverse "
                     "order of forward"));
  }
  found->gradients.push_back({this, std::move(gradient)});
  return absl::OkStatus();
}

absl::Status AttentionLink::BeforeBackward(Invocation& invocation, Tensors& output_gradients) {
  auto& records = invocation.State<Records>(this);
  if (records.calls.empty()) return absl::OkStatus();
  const int64_t number = records.calls.back();
  records.calls.pop_back();
  WEFT_RETURN_IF_ERROR(DropUnconsumed(invocation, records, number));
  auto& source = invocation.State<SourceCalls>(source_.module);
  if (source.calls.empty() || source.calls.back().number != number) {
    return absl::OkStatus();  // Another link of the source added all gradients.
  }
  Call call = std::move(source.calls.back());
  source.calls.pop_back();
  for (Gradient& gradient : call.gradients) {
    const size_t index = *gradient.link->OutputIndex(call.output_shapes.size());
    Tensor& sum = output_gradients[index];
    WEFT_ASSIGN_OR_RETURN(const Tensor received, gradient.tensor.Wait());
    WEFT_ASSIGN_OR_RETURN(sum, gradient.link->Sum(sum, received, call.output_shapes[index]));
  }
  return absl::OkStatus();
}

absl::Status AttentionLink::DropUnconsumed(Invocation& invocation, Records& records, int64_t call) const {
  const auto unconsumed = std::find_if(records.launched.begin(), records.launched.end(),
                                       [call](const Launch& launch) { return launch.call == call; });
  if (unconsumed == records.launched.end()) return absl::OkStatus();
  if (records.consumed_without_backward == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "an output of ", source_.module->name(),
        " was exchanged for an attention, but the attention took another tensor: name the last module that ",
        "writes the tensor as the attention's source, or none"));
  }
  --records.consumed_without_backward;
  invocation.RemoveReader(unconsumed->tensor.local);
  records.launched.erase(unconsumed);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> AttentionLink::Sum(const Tensor& gradient, const Tensor& received,
                                          const Shape& output_shape) const {
  const bool whole = !source_.features && (output_shape.size() == 3 || layout_ == AttentionLayout::kBshd);
  if (whole && received.view().IsContiguous()) {
    Tensor sum = received.Reshape(output_shape);
    if (gradient.defined()) {
      AddRun(gradient.view().data, gradient.dtype(), sum.view().data, sum.dtype(), sum.elements());
    }
    return sum;
  }
  // The input is a strided part of the output: add contiguous copies, then write the sum back.
  Tensor sum = gradient.defined() ? gradient.Copy() : Tensor::Zeros(received.dtype(), output_shape);
  WEFT_ASSIGN_OR_RETURN(const TensorView place, InputOf(sum.view()));
  const Tensor added = received.Copy();
  const Tensor before = sum.Window(place).Copy();
  AddRun(before.view().data, before.dtype(), added.view().data, added.dtype(), added.elements());
  WEFT_RETURN_IF_ERROR(StridedCopy(added.view(), place));
  return sum;
}

}  // namespace weft
