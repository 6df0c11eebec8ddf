#include "python/c10d/repoint_storage.h"

namespace weft::python {

void RepointStorage(const at::Tensor& tensor, uintptr_t address) {
  TORCH_CHECK_VALUE(tensor.storage_offset() == 0, "only a tensor at the start of its storage can be moved");
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  c10::DataPtr old = storage.set_data_ptr(c10::DataPtr(nullptr, tensor.device()));
  const auto deleter = old.get_deleter();
  void* const owner = old.release_context();
  storage.set_data_ptr_noswap(
      c10::DataPtr(reinterpret_cast<void*>(address), owner, deleter, tensor.device()));
}

void BindRepointStorage(pybind11::module_& module) {
  module.def("repoint_storage", &RepointStorage, pybind11::arg("tensor"), pybind11::arg("address"));
}

}  // namespace weft::python
