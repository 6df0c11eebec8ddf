#include "weft/nn/invocation.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>

#include <absl/strings/str_cat.h>

#include "weft/core/tensor_view.h"
#include "weft/nn/module.h"

namespace weft {
namespace {

// Position of the saves of `module`, of which there is at least one.
template <typename Saves>
auto FindSaves(Saves& saves, const Module* module) {
  const auto found = saves.find(module);
  WEFT_CHECK(
      found != saves.end(),
      absl::StrCat("backward of ", module->name(),
                   " found no saved tensors; its forward must save them if the invocation is_saving()"));
  return found;
}

Tensors PopLast(absl::flat_hash_map<const Module*, std::vector<Tensors>>& saves, const Module* module) {
  const auto found = FindSaves(saves, module);
  Tensors tensors = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) saves.erase(found);
  return tensors;
}

struct ByteRange {
  uintptr_t begin;
  uintptr_t end;
};

bool Overlap(const ByteRange& a, const ByteRange& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

// From the first element to the last one. Empty for a view without elements.
ByteRange BytesOf(const TensorView& view) {
  const auto begin = reinterpret_cast<uintptr_t>(view.data);
  if (view.elements() == 0) return {begin, begin};
  int64_t last = 0;
  for (size_t dim = 0; dim < view.shape.size(); ++dim) last += (view.shape[dim] - 1) * view.strides[dim];
  return {begin, begin + (static_cast<size_t>(last) + 1) * SizeOf(view.dtype)};
}

}  // namespace

RandomKey MakeRandomKey(uint64_t seed, int64_t step, int64_t first_sample, int64_t rows) {
  RandomKey key = {seed, step, std::vector<int64_t>(static_cast<size_t>(rows))};
  std::iota(key.samples.begin(), key.samples.end(), first_sample);
  return key;
}

void Invocation::Save(const Module* module, Tensors tensors) {
  if (is_saving()) saves_.modules[module].push_back(std::move(tensors));
}

Tensors Invocation::PopSaved(const Module* module) { return PopLast(saves_.modules, module); }

const Tensors& Invocation::LastSaved(const Module* module) const {
  return FindSaves(saves_.modules, module)->second.back();
}

void Invocation::SaveInputs(const Module* module, Tensors inputs) {
  if (is_saving()) saves_.inputs[module].push_back(std::move(inputs));
}

Tensors Invocation::PopInputs(const Module* module) { return PopLast(saves_.inputs, module); }

void Invocation::BeginCall(Module& module) {
  if (is_saving()) saves_.calls.push_back({&module, next_call_++, 0, {}, {}});
}

Invocation::Call* Invocation::RunningCall(const Module& module) {
  if (!is_saving()) return nullptr;
  const auto call = std::find_if(saves_.calls.rbegin(), saves_.calls.rend(), [&](const Call& waiting) {
    return waiting.module == &module && waiting.end == 0;
  });
  return call == saves_.calls.rend() ? nullptr : &*call;
}

void Invocation::NoteOutputs(const Module& module, const Tensors& outputs) {
  Call* call = RunningCall(module);
  if (call == nullptr) return;
  for (const Tensor& output : outputs) call->outputs.push_back({output.dtype(), output.shape()});
}

void Invocation::EndCall(const Module& module) {
  if (Call* call = RunningCall(module); call != nullptr) call->end = next_call_;
}

void Invocation::RequireBackward(const Module& module, BackwardReason reason) {
  if (Call* call = RunningCall(module); call != nullptr) call->backward_reasons.push_back(std::move(reason));
}

absl::Status Invocation::CheckGradients(const Module& module, const Tensors& output_gradients) const {
  const std::vector<Call>& calls = saves_.calls;
  const auto call = std::find_if(calls.rbegin(), calls.rend(),
                                 [&](const Call& waiting) { return waiting.module == &module; });
  if (call == calls.rend()) {
    return absl::FailedPreconditionError(
        absl::StrCat(module.name(),
                     ": no forward waits for this backward; call Forward first, in the same invocation, "
                     "with gradients, and Backward once for each Forward"));
  }
  if (output_gradients.empty() != call->outputs.empty() || output_gradients.size() > call->outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(module.name(), ": the number of gradients is ",
                                                   output_gradients.size(), ", that of the outputs ",
                                                   call->outputs.size()));
  }
  for (size_t i = 0; i < output_gradients.size(); ++i) {
    const Tensor& gradient = output_gradients[i];
    const Output& output = call->outputs[i];
    if (!gradient.defined() || (gradient.dtype() == output.dtype && gradient.shape() == output.shape))
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat(module.name(), ": the gradient of output ", i, " is ", ToString(gradient.shape()),
                     " of ", ToAbsl(Name(gradient.dtype())), ", the output ", ToString(output.shape), " of ",
                     ToAbsl(Name(output.dtype)), "; pass a gradient of the same shape and dtype"));
  }
  return absl::OkStatus();
}

absl::Status Invocation::FinishCall(const Module& module) {
  std::vector<Call>& calls = saves_.calls;
  const auto last = std::find_if(calls.rbegin(), calls.rend(),
                                 [&](const Call& waiting) { return waiting.module == &module; });
  if (last == calls.rend()) return absl::OkStatus();
  const auto first = std::prev(last.base());
  const auto after = std::find_if(std::next(first), calls.end(),
                                  [&](const Call& waiting) { return waiting.begin >= first->end; });
  absl::Status finished = LeftOut(module, {&*first + 1, static_cast<size_t>(after - first - 1)});
  calls.erase(first, after);
  return finished;
}

absl::Status Invocation::CheckCallsFinished(const Module& module) const {
  return LeftOut(module, saves_.calls);
}

std::string Invocation::RequiredReason(const Call& call) {
  for (const BackwardReason& reason : call.backward_reasons) {
    if (std::string why = reason(); !why.empty()) return why;
  }
  return {};
}

absl::Status Invocation::LeftOut(const Module& module, absl::Span<const Call> calls) const {
  for (const Call& call : calls) {
    const auto parameters = call.module->AllParameters();
    const auto trainable = [](const auto& parameter) { return parameter->requires_grad; };
    const bool is_frozen =
        !parameters.empty() && std::none_of(parameters.begin(), parameters.end(), trainable);
    const bool has_saved = saves_.modules.contains(call.module) || saves_.inputs.contains(call.module);
    const bool is_exception = is_frozen || (parameters.empty() && !has_saved);
    const std::string why = is_exception ? RequiredReason(call)
                                         : "whose forward it has called: call Backward of every child, in "
                                           "the reverse order of the forwards";
    if (why.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the backward of '", module.name(), "' left out the backward of '", call.module->name(), "', ", why));
  }
  return absl::OkStatus();
}

void Invocation::AddReader(const Tensor& tensor, const std::string* use) {
  readers_.push_back({tensor.view(), use});
}

void Invocation::RemoveReader(const Tensor& tensor, const std::string* use) {
  const auto found = std::find_if(readers_.rbegin(), readers_.rend(), [&](const Reader& reader) {
    return reader.use == use && IsSameView(reader.view, tensor.view());
  });
  WEFT_CHECK(found != readers_.rend(), "RemoveReader without AddReader");
  readers_.erase(std::next(found).base());
}

const Invocation::Reader* Invocation::ReaderOf(const Tensor& tensor) const {
  const ByteRange bytes = BytesOf(tensor.view());
  const auto found = std::find_if(readers_.rbegin(), readers_.rend(),
                                  [&](const Reader& reader) { return Overlap(BytesOf(reader.view), bytes); });
  return found == readers_.rend() ? nullptr : &*found;
}

absl::Status Invocation::CheckWritable(const Tensor& tensor, const std::string& writer) const {
  const Reader* reader = ReaderOf(tensor);
  if (reader == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(writer, " would overwrite ", *reader->use));
}

Tensor Invocation::WritableOrCopy(const Tensor& tensor) const {
  return ReaderOf(tensor) == nullptr ? tensor : tensor.Copy();
}

}  // namespace weft
