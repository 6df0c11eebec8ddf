#include "src/nn/base/residual.h"

#include "weft/core/add_run.h"

namespace weft {

void AddInPlace(const Tensor& target, const Tensor& addend) {
  WEFT_CHECK(target.shape() == addend.shape() && target.dtype() == addend.dtype(),
             "the terms of a residual sum differ in shape or dtype");
  WEFT_CHECK(target.view().IsContiguous() && addend.view().IsContiguous(),
             "a term of a residual sum is not contiguous");
  AddRun(addend.view().data, addend.dtype(), target.view().data, target.dtype(), target.elements());
}

}  // namespace weft
