#include "weft/nn/invocation.h"

#include <absl/strings/str_cat.h>

#include "weft/nn/module.h"

namespace weft {
namespace {

Tensors PopLast(absl::flat_hash_map<const Module*, std::vector<Tensors>>& saves, const Module* module) {
  const auto found = saves.find(module);
  WEFT_CHECK(
      found != saves.end(),
      absl::StrCat(
          "backward of ", module->name(),
          " found no saved tensors; run its forward first, in the same invocation and with gradients"));
  Tensors tensors = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) saves.erase(found);
  return tensors;
}

}  // namespace

void Invocation::Save(const Module* module, Tensors tensors) {
  if (is_saving()) saves_.modules[module].push_back(std::move(tensors));
}

Tensors Invocation::PopSaved(const Module* module) { return PopLast(saves_.modules, module); }

void Invocation::SaveInputs(const Module* module, Tensors inputs) {
  if (is_saving()) saves_.inputs[module].push_back(std::move(inputs));
}

Tensors Invocation::PopInputs(const Module* module) { return PopLast(saves_.inputs, module); }

void Invocation::AddReader(const Tensor& tensor, const std::string* use) {
  Readers& readers = readers_[tensor.view().data];
  readers.use = use;
  ++readers.count;
}

void Invocation::RemoveReader(const Tensor& tensor) {
  const auto found = readers_.find(tensor.view().data);
  WEFT_CHECK(found != readers_.end(), "RemoveReader without AddReader");
  if (--found->second.count == 0) readers_.erase(found);
}

absl::Status Invocation::CheckWritable(const Tensor& tensor, const std::string& writer) const {
  const auto found = readers_.find(tensor.view().data);
  if (found == readers_.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(writer, " would overwrite ", *found->second.use));
}

}  // namespace weft
