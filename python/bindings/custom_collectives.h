// Collectives of parameter groups that are written in Python.
//
// A collective is a function of tensors that returns a Work with wait() and is_completed(), or None if it has
// ended already. All tensors are one-dimensional, in weft's memory, and valid until the Work has ended.
//
// Errors: an exception of the function or of wait() fails the groups on all ranks, and is raised by the call
//   that ran it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "weft/core/tensor_view.h"
#include "weft/sharding/custom_collectives.h"

namespace weft::python {

using TorchTensor = nanobind::ndarray<nanobind::pytorch>;

// `function(gathered, part)`, in the dtype of parameters. None: no function.
CustomAllGather AllGatherInPython(nanobind::object function);
// `function(output, input)`, in the dtype of reductions, with equal parts of all ranks. None: no function.
CustomReduceScatter ReduceScatterInPython(nanobind::object function);
// `hook(gradient)`. None: no hook.
GradientHook GradientHookInPython(nanobind::object hook);

nanobind::dlpack::dtype DLPackType(DType dtype);

}  // namespace weft::python
