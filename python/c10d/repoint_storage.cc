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

void SwapStorages(const at::Tensor& first, const at::Tensor& second) {
  c10::StorageImpl& one = *first.storage().unsafeGetStorageImpl();
  c10::StorageImpl& other = *second.storage().unsafeGetStorageImpl();
  TORCH_CHECK_VALUE(one.nbytes() == other.nbytes(), "storages of ", one.nbytes(), " and ", other.nbytes(),
                    " bytes cannot be exchanged");
  one.swap_data_ptr(other);
  c10::Allocator* const allocator = one.allocator();
  const bool is_resizable = one.resizable();
  one.set_allocator(other.allocator());
  one.set_resizable(other.resizable());
  other.set_allocator(allocator);
  other.set_resizable(is_resizable);
}

void BindRepointStorage(pybind11::module_& module) {
  module.def("repoint_storage", &RepointStorage, pybind11::arg("tensor"), pybind11::arg("address"));
  module.def("swap_storages", &SwapStorages, pybind11::arg("first"), pybind11::arg("second"));
}

}  // namespace weft::python
