#include "python/c10d/tensor_data.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace weft::python {
namespace {

using TorchReduction = ::c10d::ReduceOp;

// True if two of the elements share memory, by their offsets. REQUIRES: sizes are positive.
bool HasEqualOffsets(const std::vector<std::pair<int64_t, int64_t>>& dims) {
  std::vector<int64_t> offsets = {0};
  for (const auto& [stride, size] : dims) {
    const size_t before = offsets.size();
    for (int64_t i = 1; i < size; ++i) {
      for (size_t k = 0; k < before; ++k) offsets.push_back(offsets[k] + i * stride);
    }
  }
  std::sort(offsets.begin(), offsets.end());
  return std::adjacent_find(offsets.begin(), offsets.end()) != offsets.end();
}

// True if elements of the tensor may share memory. They do not if each dim, by its stride, steps over all
// smaller ones. Of a tensor of other strides, the offsets are compared, unless it is large.
bool MayOverlap(const at::Tensor& tensor) {
  constexpr int64_t kMostOffsets = 1 << 20;
  std::vector<std::pair<int64_t, int64_t>> dims;  // Stride and size.
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 0) return false;
    if (tensor.size(dim) > 1) dims.emplace_back(tensor.stride(dim), tensor.size(dim));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return tensor.numel() > kMostOffsets || HasEqualOffsets(dims);
    extent += stride * (size - 1);
  }
  return false;
}

std::string NameOf(const TorchReduction& op) {
  switch (op.op_) {
    case TorchReduction::SUM:
      return "SUM";
    case TorchReduction::AVG:
      return "AVG";
    case TorchReduction::PRODUCT:
      return "PRODUCT";
    case TorchReduction::MIN:
      return "MIN";
    case TorchReduction::MAX:
      return "MAX";
    case TorchReduction::BAND:
      return "BAND";
    case TorchReduction::BOR:
      return "BOR";
    case TorchReduction::BXOR:
      return "BXOR";
    case TorchReduction::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "UNUSED";
  }
}

enum class Kind { kBool, kInteger, kUnsigned, kFloat, kComplex, kBytes };

Kind KindOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return Kind::kBool;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return Kind::kInteger;
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
      return Kind::kUnsigned;
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return Kind::kFloat;
    case at::kComplexHalf:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return Kind::kComplex;
    default:
      return Kind::kBytes;
  }
}

bool IsDefined(TorchReduction::RedOpType op, Kind kind) {
  const bool is_sum = op == TorchReduction::SUM || op == TorchReduction::PREMUL_SUM;
  const bool is_bitwise =
      op == TorchReduction::BAND || op == TorchReduction::BOR || op == TorchReduction::BXOR;
  switch (kind) {
    case Kind::kBool:
      return op != TorchReduction::AVG && op != TorchReduction::PREMUL_SUM;
    case Kind::kInteger:
      return op != TorchReduction::AVG && op != TorchReduction::PREMUL_SUM;
    case Kind::kUnsigned:  // The engine has signed integers of these sizes.
      return op == TorchReduction::SUM || op == TorchReduction::PRODUCT || is_bitwise;
    case Kind::kFloat:
      return !is_bitwise;
    case Kind::kComplex:
      return is_sum || op == TorchReduction::AVG;
    case Kind::kBytes:
      break;
  }
  return false;
}

ReduceOp ReductionOfBool(TorchReduction::RedOpType op) {
  switch (op) {
    case TorchReduction::PRODUCT:
    case TorchReduction::MIN:
    case TorchReduction::BAND:
      return ReduceOp::kMin;
    case TorchReduction::BXOR:
      return ReduceOp::kBitXor;
    default:
      return ReduceOp::kMax;
  }
}

const ::c10d::PreMulSumSupplement* FactorOf(const TorchReduction& op) {
  return dynamic_cast<const ::c10d::PreMulSumSupplement*>(op.supplement_.get());
}

void CheckFactor(const TorchReduction& op, at::ScalarType dtype) {
  const auto* const factor = FactorOf(op);
  TORCH_CHECK_VALUE(factor != nullptr, "weft: ReduceOp.PREMUL_SUM has no factor");
  const at::Tensor& tensor = factor->tensor_factor;
  if (!tensor.defined()) return;
  TORCH_CHECK_VALUE(tensor.numel() == 1, "weft: the factor of ReduceOp.PREMUL_SUM has ", tensor.numel(),
                    " elements; give a number, or a tensor with one element");
  TORCH_CHECK_VALUE(at::can_cast(tensor.scalar_type(), dtype), "weft: the factor of ReduceOp.PREMUL_SUM is ",
                    tensor.scalar_type(), ", but the tensor is ", dtype, "; give a real factor");
}

// Returns the kind of a dtype that travels as bytes.
ElementKind KindOfBytes(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat8_e4m3fn:
      return ElementKind::kFloat8E4M3Fn;
    case at::kFloat8_e4m3fnuz:
      return ElementKind::kFloat8E4M3Fnuz;
    case at::kFloat8_e5m2:
      return ElementKind::kFloat8E5M2;
    case at::kFloat8_e5m2fnuz:
      return ElementKind::kFloat8E5M2Fnuz;
    case at::kFloat8_e8m0fnu:
      return ElementKind::kFloat8E8M0Fnu;
    case at::kFloat4_e2m1fn_x2:
      return ElementKind::kFloat4E2M1Fn;
    default:
      return ElementKind::kBytes;
  }
}

}  // namespace

ElementKind ElementKindOf(at::ScalarType dtype) {
  switch (KindOf(dtype)) {
    case Kind::kBool:
      return ElementKind::kBool;
    case Kind::kUnsigned:
      return ElementKind::kUnsigned;
    case Kind::kComplex:
      return ElementKind::kComplex;
    case Kind::kBytes:
      return KindOfBytes(dtype);
    case Kind::kInteger:
    case Kind::kFloat:
      break;
  }
  return ElementKind::kPlain;
}

DType DTypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kComplexFloat:
      return DType::kF32;
    case at::kDouble:
    case at::kComplexDouble:
      return DType::kF64;
    case at::kHalf:
    case at::kComplexHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kInt:
    case at::kUInt32:
      return DType::kI32;
    case at::kLong:
    case at::kUInt64:
      return DType::kI64;
    case at::kShort:
    case at::kUInt16:
      return DType::kI16;
    case at::kChar:
      return DType::kI8;
    default:
      return DType::kU8;
  }
}

int64_t ElementsOf(at::ScalarType dtype, int64_t numel) {
  switch (KindOf(dtype)) {
    case Kind::kComplex:
      return 2 * numel;
    case Kind::kBytes:
      return static_cast<int64_t>(c10::elementSize(dtype)) * numel;
    default:
      return numel;
  }
}

bool IsAligned(const at::Tensor& tensor) {
  const size_t size = c10::elementSize(c10::toRealValueType(tensor.scalar_type()));
  return tensor.numel() == 0 || reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % size == 0;
}

TensorData DataOf(const at::Tensor& tensor) {
  return {tensor.data_ptr(), DTypeOf(tensor.scalar_type()), ElementsOf(tensor.scalar_type(), tensor.numel())};
}

ReduceOp ReductionOf(const TorchReduction& op, at::ScalarType dtype) {
  const Kind kind = KindOf(dtype);
  TORCH_CHECK_VALUE(
      IsDefined(op.op_, kind), "weft: ReduceOp.", NameOf(op), " is not defined for ", dtype,
      "; convert the tensor to a dtype for which it is, such as float32 for AVG or int64 for BAND");
  if (op.op_ == TorchReduction::PREMUL_SUM) CheckFactor(op, dtype);
  if (kind == Kind::kBool) return ReductionOfBool(op.op_);
  switch (op.op_) {
    case TorchReduction::AVG:
      return ReduceOp::kAverage;
    case TorchReduction::PRODUCT:
      return ReduceOp::kProduct;
    case TorchReduction::MIN:
      return ReduceOp::kMin;
    case TorchReduction::MAX:
      return ReduceOp::kMax;
    case TorchReduction::BAND:
      return ReduceOp::kBitAnd;
    case TorchReduction::BOR:
      return ReduceOp::kBitOr;
    case TorchReduction::BXOR:
      return ReduceOp::kBitXor;
    default:
      return ReduceOp::kSum;
  }
}

at::Tensor ScaledInput(const at::Tensor& input, const TorchReduction& op) {
  if (op.op_ != TorchReduction::PREMUL_SUM) return input;
  const auto& factor = *FactorOf(op);
  const at::NoGradGuard guard;
  // If the input has no dims either, a factor of a wider dtype widens the product.
  return factor.tensor_factor.defined()
             ? at::mul(input, factor.tensor_factor.reshape({})).to(input.scalar_type())
             : at::mul(input, at::Scalar(factor.double_factor));
}

std::string Numbered(const char* what, size_t index) {
  return std::string(what) + " " + std::to_string(index);
}

void CheckTensor(const at::Tensor& tensor, const std::string& operation, const std::string& what) {
  TORCH_CHECK_VALUE(tensor.defined(), "weft: ", operation, ": ", what, " is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "weft: ", operation, ": ", what, " is ", tensor.layout(),
                    "; make it dense with to_dense()");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "weft: ", operation, ": ", what, " is on ", tensor.device(),
                    "; weft moves CPU tensors: use 'cpu:weft,cuda:nccl' for both devices");
}

void CheckOutput(const at::Tensor& tensor, const std::string& operation, const std::string& what) {
  CheckTensor(tensor, operation, what);
  TORCH_CHECK_VALUE(!MayOverlap(tensor), "weft: ", operation, ": ", what, " of shape ", tensor.sizes(),
                    " and strides ", tensor.strides(),
                    " may have elements that share memory, so it cannot be written: give its clone()");
}

void CheckSameDtype(const at::Tensor& tensor, const at::Tensor& other, const std::string& operation) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == other.scalar_type(), "weft: ", operation, ": tensors of ",
                    tensor.scalar_type(), " and ", other.scalar_type(), "; all must have one dtype");
}

void CheckNumel(const at::Tensor& tensor, int64_t expected, const std::string& operation,
                const std::string& what) {
  TORCH_CHECK_VALUE(tensor.numel() == expected, "weft: ", operation, ": ", what, " has ", tensor.numel(),
                    " elements, expected ", expected);
}

}  // namespace weft::python
