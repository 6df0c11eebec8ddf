// Views whose base nothing else can reach, as tensors of their own.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace weft::python {

// Returns `tensor`, unless it is a view whose base only it holds, such as the output of nn.Linear for three
// dims. Then returns a tensor of the same memory that is no view.
//
// After a change in place, autograd gives a view another node in its graph: hooks on the view are lost. Other
// tensors keep theirs. A base that nothing else holds needs none of the changes that autograd makes for a
// view. The tensor shares the version of the base, so that autograd still refuses changes of values that it
// has saved. A view of a leaf that requires a gradient stays one: autograd refuses its changes.
at::Tensor OwnedIfSoleView(const at::Tensor& tensor);

// Adds owned_if_sole_view(tensor) to the module.
void BindSoleViews(pybind11::module_& module);

}  // namespace weft::python
