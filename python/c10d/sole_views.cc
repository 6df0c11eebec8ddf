#include "python/c10d/sole_views.h"

#include <torch/csrc/autograd/variable.h>

namespace weft::python {
namespace {

// An object in Python that nothing else refers to holds the tensor once, and the tensor holds the object.
bool HasOneHolder(const at::TensorBase& tensor) {
  PyObject* const object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return object == nullptr ? tensor.use_count() == 1 : tensor.use_count() == 2 && Py_REFCNT(object) == 1;
}

}  // namespace

at::Tensor OwnedIfSoleView(const at::Tensor& tensor) {
  if (!tensor.is_view()) return tensor;
  const at::TensorBase& base = tensor._base();
  if (!HasOneHolder(base) || (base.is_leaf() && base.requires_grad())) return tensor;
  at::Tensor owned = at::_unsafe_view(tensor, tensor.sizes());
  torch::autograd::impl::set_version_counter(owned, torch::autograd::impl::version_counter(tensor));
  return owned;
}

void BindSoleViews(pybind11::module_& module) {
  module.def("owned_if_sole_view", &OwnedIfSoleView, pybind11::arg("tensor"));
}

}  // namespace weft::python
