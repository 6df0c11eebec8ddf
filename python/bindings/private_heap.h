// The private heap of this process, for tensors of PyTorch.
#pragma once

#include <nanobind/nanobind.h>

namespace weft::python {

// Adds private_memory, private_memory_in_use and release_private_memory to the module.
void BindPrivateHeap(nanobind::module_& module);

}  // namespace weft::python
