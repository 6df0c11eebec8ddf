// Moves a tensor's storage to another address, together with every view of it that autograd has saved.
#pragma once

#include <cstdint>
#include <torch/csrc/utils/pybind.h>

namespace weft::python {

// Makes the storage of `tensor` begin at `address`, where memory of the same size lies. The storage keeps the
// owner that it has.
// REQUIRES: `tensor` begins at the start of its storage; the owner keeps the new memory too.
void RepointStorage(const at::Tensor& tensor, uintptr_t address);

// Adds repoint_storage(tensor, address) to the module.
void BindRepointStorage(pybind11::module_& module);

}  // namespace weft::python
