// Tensors as the elements that weft's engine moves and reduces.
#pragma once

#include <ATen/ATen.h>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "weft/comm/element_enums.h"
#include "weft/core/dtype_enum.h"

namespace weft::python {

// The elements of a contiguous tensor. A complex number is two elements. Dtypes that the engine does not know
// are integers of the same size, or bytes.
struct TensorData {
  void* data;
  DType type;
  int64_t count;
};

// True if the tensor begins at a multiple of the size of its elements: one of torch.frombuffer may not.
bool IsAligned(const at::Tensor& tensor);
// REQUIRES: contiguous and aligned.
TensorData DataOf(const at::Tensor& tensor);
// Engine elements for `numel` elements of a dtype.
int64_t ElementsOf(at::ScalarType dtype, int64_t numel);
DType DTypeOf(at::ScalarType dtype);
ElementKind ElementKindOf(at::ScalarType dtype);

// The engine's reduction for a reduction of tensors of `dtype`. PREMUL_SUM is a sum. Of bool, a sum is
// "or", and a product "and".
// Errors: raises ValueError for a reduction that is not defined for the dtype, and for a PREMUL_SUM without a
// factor, or whose factor is not one number that the dtype can take.
ReduceOp ReductionOf(const ::c10d::ReduceOp& op, at::ScalarType dtype);

// `input` times the factor of PREMUL_SUM, in its dtype; `input` itself for other reductions.
// REQUIRES: ReductionOf accepts `op` for the dtype.
at::Tensor ScaledInput(const at::Tensor& input, const ::c10d::ReduceOp& op);

// The name of one of several tensors, as in "output 2".
std::string Numbered(const char* what, size_t index);

// Raises ValueError unless the tensor is dense, on the CPU and defined. `what` names it, as in "output 2".
void CheckTensor(const at::Tensor& tensor, const std::string& operation, const std::string& what);
// CheckTensor, and raises ValueError if elements share memory, as those of an expanded tensor do.
void CheckOutput(const at::Tensor& tensor, const std::string& operation, const std::string& what);
void CheckSameDtype(const at::Tensor& tensor, const at::Tensor& other, const std::string& operation);
void CheckNumel(const at::Tensor& tensor, int64_t expected, const std::string& operation,
                const std::string& what);

}  // namespace weft::python
