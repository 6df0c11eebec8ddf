#include "weft/nn/invocation.h"

#include <absl/strings/str_cat.h>

#include "weft/nn/module.h"

namespace weft {
namespace {

Tensors TakeLast(absl::flat_hash_map<const Module*, std::vector<Tensors>>& saves, const Module* module) {
  const auto found = saves.find(module);
  WEFT_CHECK(found != saves.end(),
             absl::StrCat("backward of ", module->name(), " without a forward that kept gradients"));
  Tensors tensors = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) saves.erase(found);
  return tensors;
}

}  // namespace

void Invocation::Save(const Module* module, Tensors tensors) {
  if (saves()) saves_.modules[module].push_back(std::move(tensors));
}

Tensors Invocation::TakeSaved(const Module* module) { return TakeLast(saves_.modules, module); }

void Invocation::SaveInputs(const Module* module, Tensors inputs) {
  if (saves()) saves_.inputs[module].push_back(std::move(inputs));
}

Tensors Invocation::TakeInputs(const Module* module) { return TakeLast(saves_.inputs, module); }

void Invocation::Lend(const Tensor& tensor, const std::string* use) {
  Loans& loans = lent_[tensor.view().data];
  loans.use = use;
  ++loans.count;
}

void Invocation::TakeBack(const Tensor& tensor) {
  const auto found = lent_.find(tensor.view().data);
  WEFT_CHECK(found != lent_.end(), "a tensor is taken back that was not lent");
  if (--found->second.count == 0) lent_.erase(found);
}

absl::Status Invocation::CheckWritable(const Tensor& tensor, const std::string& writer) const {
  const auto found = lent_.find(tensor.view().data);
  if (found == lent_.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(writer, " would overwrite ", *found->second.use));
}

}  // namespace weft
