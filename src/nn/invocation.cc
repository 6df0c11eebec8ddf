#include "weft/nn/invocation.h"

#include "weft/nn/module.h"

namespace weft {

Tensors Invocation::TakeSaved(const Module* module) {
  const auto found = saved_.find(module);
  WEFT_CHECK(found != saved_.end(),
             absl::StrCat("backward of ", module->name(), " without a forward that kept gradients"));
  Tensors tensors = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) saved_.erase(found);
  return tensors;
}

}  // namespace weft
