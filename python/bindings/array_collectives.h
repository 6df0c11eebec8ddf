// Collectives of numpy arrays and of other tensors that DLPack describes, as methods of weft._core.Group.
#pragma once

#include <nanobind/nanobind.h>

namespace weft::python {

// Adds the classes Group and Operation.
void BindArrayCollectives(nanobind::module_& module);

}  // namespace weft::python
