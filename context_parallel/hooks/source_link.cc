#include "context_parallel/hooks/source_link.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor_view.h"

namespace weft {
Tensor AsBshd(const Tensor& tensor, AttentionLayout layout) {
  return tensor.Window(AsBshd(tensor.view(), layout));
}

Tensor InLayout(const Tensor& bshd, AttentionLayout layout) {
  const Tensor arranged = AsBshd(bshd, layout);  // The permutation is its own inverse.
  return arranged.view().IsContiguous() ? arranged : arranged.Copy();
}

TensorView HeadsOf(const TensorView& view, int64_t heads,
                   const std::optional<ExchangeSource::Features>& features) {
  const TensorView part = features ? view.Slice(2, features->first, features->count) : view;
  TensorView split = part;
  const int64_t head_dim = part.shape[2] / heads;
  split.shape = {part.shape[0], part.shape[1], heads, head_dim};
  split.strides = {part.strides[0], part.strides[1], head_dim * part.strides[2], part.strides[2]};
  return split;
}

Tensor NegativeZeros(DType dtype, const Shape& shape) {
  constexpr float kNegativeZero = -0.0F;
  TensorView source{const_cast<float*>(&kNegativeZero), DType::kF32, shape, Shape(shape.size(), 0)};
  Tensor zeros = Tensor::Empty(dtype, shape);
  const absl::Status filled = StridedCopy(source, zeros.view());
  WEFT_CHECK(filled.ok(), ToStd(filled.message()));
  return zeros;
}

SourceLink::SourceLink(Options options) : options_(std::move(options)) {
  Module* module = options_.source.module;
  if (module == nullptr) return;
  reader_purpose_ = absl::StrCat("an output of ", module->name(), " that is being exchanged as ",
                                 options_.tensor, ": name the last module that writes the tensor as its ",
                                 "source, such as the rotary embedding");
  hooks_ = {module->AddForwardPostHook([this](Module&, Invocation& invocation, Tensors& outputs) {
              return AfterForward(invocation, outputs);
            }),
            module->AddBackwardPreHook([this](Module&, Invocation& invocation, Tensors& gradients) {
              return BeforeBackward(invocation, gradients);
            }),
            module->AddBackwardPostHook([this](Module&, Invocation& invocation, Tensors&) {
              AfterBackward(invocation);
              return absl::OkStatus();
            })};
}

SourceLink::~SourceLink() {
  for (const Module::HookId hook : hooks_) options_.source.module->RemoveHook(hook);
}

SourceLink::Call* SourceLink::SourceCalls::Find(int64_t number) {
  const auto found =
      std::find_if(calls.begin(), calls.end(), [&](const Call& call) { return call.number == number; });
  return found == calls.end() ? nullptr : &*found;
}

std::optional<size_t> SourceLink::OutputIndex(size_t outputs) const {
  if (options_.source.output) return static_cast<size_t>(*options_.source.output);
  return outputs == 1 ? std::optional<size_t>(0) : std::nullopt;
}

absl::StatusOr<TensorView> SourceLink::InputOf(const TensorView& output) const {
  const int64_t heads = options_.heads;
  const int last = static_cast<int>(output.shape.size()) - 1;
  if (!options_.source.features && (heads == 0 || last == 3)) return AsBshd(output, options_.layout);
  if (last >= 0 && (heads == 0 || last == 2)) {
    const auto features = options_.source.features.value_or(
        ExchangeSource::Features{0, output.shape[static_cast<size_t>(last)]});
    const bool inside = features.first >= 0 && features.count > 0 &&
                        features.first + features.count <= output.shape[static_cast<size_t>(last)];
    if (inside && heads == 0) return output.Slice(last, features.first, features.count);
    if (inside && features.count % heads == 0) return HeadsOf(output, heads, options_.source.features);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "an output of ", options_.source.module->name(), " has the shape ", ToString(output.shape),
      ", which does not hold ", heads, " heads of ", options_.tensor, " at the given features: give the ",
      "heads and features of an output [batch, tokens, features], or name a module whose output has a dim "
      "of ",
      "heads"));
}

int64_t SourceLink::RecordCall(Invocation& invocation, Records& records, const Tensors& outputs) const {
  auto& source = invocation.State<SourceCalls>(options_.source.module);
  if (source.calls.size() == records.calls.size()) {  // Otherwise another link of the source recorded it.
    Call& call = source.calls.emplace_back();
    call.number = source.next_number++;
    for (const Tensor& output : outputs) call.output_shapes.push_back(output.shape());
  }
  source.calls.back().links.push_back(this);
  records.calls.push_back(source.calls.back().number);
  return records.calls.back();
}

absl::Status SourceLink::AfterForward(Invocation& invocation, const Tensors& outputs) {
  const std::optional<size_t> index = OutputIndex(outputs.size());
  if (!index) return absl::OkStatus();
  if (*index >= outputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.source.module->name(), " has ", outputs.size(), " outputs, but output ", *index,
                     " is named as the source of ", options_.tensor, ": name an existing one"));
  }
  auto& records = invocation.State<Records>(this);
  std::optional<int64_t> call;
  if (invocation.is_saving()) call = RecordCall(invocation, records, outputs);
  const Tensor& output = outputs[*index];
  if (!output.defined() || !IsFloating(output.dtype())) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const TensorView input, InputOf(output.view()));
  WEFT_ASSIGN_OR_RETURN(LaunchedTensor launched, options_.launch(invocation, output.Window(input)));
  invocation.AddReader(launched.local, &reader_purpose_);
  records.launched.push_back({std::move(launched), call, invocation.is_recomputing()});
  return absl::OkStatus();
}

std::optional<SourceLink::ConsumedInput> SourceLink::ConsumeLaunched(Invocation& invocation,
                                                                     const Tensor& local) const {
  auto& records = invocation.State<Records>(this);
  const auto found = std::find_if(
      records.launched.begin(), records.launched.end(),
      [&](const Launch& launch) { return IsSameView(launch.tensor.local.view(), local.view()); });
  if (found == records.launched.end()) return std::nullopt;
  invocation.RemoveReader(local, &reader_purpose_);
  ConsumedInput consumed{std::move(found->tensor), {.call = found->call}};
  if (!consumed.origin.call && invocation.gradients()) ++records.taken_before_recompute;
  if (found->is_recomputed && records.taken_before_recompute > 0) --records.taken_before_recompute;
  records.launched.erase(found);
  return consumed;
}

absl::StatusOr<SourceLink::ConsumedInput> SourceLink::ConsumeInput(Invocation& invocation,
                                                                   const Tensor& input,
                                                                   LocalLauncher launch) {
  const Tensor local = AsBshd(input, options_.layout);
  std::optional<ConsumedInput> consumed = ConsumeLaunched(invocation, local);
  if (!consumed) {
    WEFT_ASSIGN_OR_RETURN(LaunchedTensor launched, launch(local));
    consumed = ConsumedInput{std::move(launched), {}};
  }
  consumed->origin.dtype = input.dtype();
  consumed->origin.shape = input.shape();
  return *std::move(consumed);
}

absl::StatusOr<Tensor> SourceLink::ReturnGradient(Invocation& invocation, const Origin& origin,
                                                  PendingTensor gradient) {
  if (origin.call) {
    Tensor zeros = NegativeZeros(origin.dtype, origin.shape);
    WEFT_RETURN_IF_ERROR(HandToSource(invocation, *origin.call, std::move(gradient)));
    return zeros;
  }
  WEFT_ASSIGN_OR_RETURN(const Tensor received, gradient.Wait());
  return InLayout(received, options_.layout);
}

absl::Status SourceLink::HandToSource(Invocation& invocation, int64_t call, PendingTensor gradient) {
  Call* found = invocation.State<SourceCalls>(options_.source.module).Find(call);
  if (found == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the backward of ", options_.source.module->name(), " ran before that of a module that takes ",
        options_.tensor, ": run backward in the reverse order of forward"));
  }
  found->gradients.push_back({this, std::move(gradient)});
  return absl::OkStatus();
}

absl::Status SourceLink::BeforeBackward(Invocation& invocation, Tensors& output_gradients) {
  auto& records = invocation.State<Records>(this);
  if (records.calls.empty()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(invocation.CheckGradients(*options_.source.module, output_gradients));
  const int64_t number = records.calls.back();
  WEFT_RETURN_IF_ERROR(DropUntaken(invocation, records, number));
  Call& call = invocation.State<SourceCalls>(options_.source.module).calls.back();
  if (call.links.front() != this) return absl::OkStatus();  // The first link adds all gradients.
  if (call.has_given_gradients) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.source.module->name(), ": an earlier backward of this call failed after it had been given ",
        "the gradients of its exchanged outputs: repeat the pass from its forward"));
  }
  for (const SourceLink* link : call.links) {
    if (link->options_.complete) WEFT_RETURN_IF_ERROR(link->options_.complete(invocation, number));
  }
  call.has_given_gradients = !call.gradients.empty();
  for (Gradient& gradient : call.gradients) {
    const size_t index = *gradient.link->OutputIndex(call.output_shapes.size());
    if (index >= output_gradients.size()) output_gradients.resize(index + 1);
    Tensor& sum = output_gradients[index];
    WEFT_ASSIGN_OR_RETURN(const Tensor received, gradient.tensor.Wait());
    WEFT_ASSIGN_OR_RETURN(sum, gradient.link->Sum(sum, received, call.output_shapes[index]));
  }
  call.gradients.clear();
  return absl::OkStatus();
}

void SourceLink::AfterBackward(Invocation& invocation) const {
  auto& records = invocation.State<Records>(this);
  if (records.calls.empty()) return;
  auto& source = invocation.State<SourceCalls>(options_.source.module);
  const bool is_last = source.calls.back().links.back() == this;  // Its hook runs after those of the others.
  if (is_last) source.calls.pop_back();
  records.calls.pop_back();
}

absl::Status SourceLink::DropUntaken(Invocation& invocation, Records& records, int64_t call) const {
  const auto untaken = std::find_if(records.launched.begin(), records.launched.end(),
                                    [call](const Launch& launch) { return launch.call == call; });
  if (untaken == records.launched.end()) return absl::OkStatus();
  if (records.taken_before_recompute == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "an output of ", options_.source.module->name(), " was exchanged as ", options_.tensor,
        ", but the consumer took another tensor: name the last module that writes the tensor as its source, ",
        "or none"));
  }
  --records.taken_before_recompute;
  invocation.RemoveReader(untaken->tensor.local, &reader_purpose_);
  records.launched.erase(untaken);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> SourceLink::Sum(const Tensor& gradient, const Tensor& received,
                                       const Shape& output_shape) const {
  const bool whole =
      !options_.source.features && (output_shape.size() == 3 || options_.layout == AttentionLayout::kBshd);
  if (whole && received.view().IsContiguous()) {
    Tensor sum = received.Reshape(output_shape);
    if (gradient.defined()) {
      const Tensor added = gradient.view().IsContiguous() ? gradient : gradient.Copy();
      AddRun(added.view().data, added.dtype(), sum.view().data, sum.dtype(), sum.elements());
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
