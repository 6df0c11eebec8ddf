// Moves of tensors' storages to other memory, together with every view of them
// that autograd has saved.
#pragma once

#include <cstdint>
#include <torch/csrc/utils/pybind.h>

namespace weft::python {

// Makes the storage of `tensor` begin at `address`, where memory of the same size lies. The storage keeps the
// owner that it has.
// REQUIRES: `tensor` begins at the start of its storage; the owner keeps the new memory too.
void RepointStorage(const at::Tensor& tensor, uintptr_t address);

// Exchanges the memory of two tensors' storages, with its owners: each tensor, and every view of it, lies in
// the memory of the other one afterwards.
// REQUIRES: storages of one size.
void SwapStorages(const at::Tensor& first, const at::Tensor& second);

// Adds repoint_storage(tensor, address) and swap_storages(first, second) to the module.
void BindRepointStorage(pybind11::module_& module);

}  // namespace weft::python
