#include "python/bindings/array_arguments.h"

#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/dtype.h"

namespace nb = nanobind;

namespace weft::python {

std::optional<DType> KnownTypeOf(const nb::dlpack::dtype& dtype) {
  const auto is = [&](DTypeCode code, int bits) {
    return dtype.code == static_cast<uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
  };
  if (is(DTypeCode::Float, 32)) return DType::kF32;
  if (is(DTypeCode::Bfloat, 16)) return DType::kBF16;
  if (is(DTypeCode::Float, 16)) return DType::kF16;
  if (is(DTypeCode::Float, 64)) return DType::kF64;
  if (is(DTypeCode::Int, 32)) return DType::kI32;
  if (is(DTypeCode::Int, 64)) return DType::kI64;
  if (is(DTypeCode::Int, 16)) return DType::kI16;
  if (is(DTypeCode::Int, 8)) return DType::kI8;
  if (is(DTypeCode::UInt, 8)) return DType::kU8;
  return std::nullopt;
}

DType TypeOf(const nb::dlpack::dtype& dtype) {
  if (const auto type = KnownTypeOf(dtype)) return *type;
  throw nb::type_error(
      "the collectives take float32, bfloat16, float16, float64, int64, int32, int16, int8 and uint8; view "
      "the array as one of them");
}

ReduceOp ReductionOf(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, ReduceOp>, 8> kNames = {{{"sum", ReduceOp::kSum},
                                                                            {"average", ReduceOp::kAverage},
                                                                            {"max", ReduceOp::kMax},
                                                                            {"min", ReduceOp::kMin},
                                                                            {"product", ReduceOp::kProduct},
                                                                            {"bit_and", ReduceOp::kBitAnd},
                                                                            {"bit_or", ReduceOp::kBitOr},
                                                                            {"bit_xor", ReduceOp::kBitXor}}};
  for (const auto& [known, reduction] : kNames) {
    if (name == known) return reduction;
  }
  throw nb::value_error(
      absl::StrCat("unknown reduction '", std::string(name),
                   "'; the reductions are sum, average, max, min, product, bit_and, bit_or and bit_xor")
          .c_str());
}

void CheckReduction(ReduceOp reduction, DType type) {
  const bool is_integer = !IsFloating(type);
  if (reduction == ReduceOp::kAverage && is_integer) {
    throw nb::value_error("an average of integers is not defined; use the sum, and divide it");
  }
  const bool is_bitwise =
      reduction == ReduceOp::kBitAnd || reduction == ReduceOp::kBitOr || reduction == ReduceOp::kBitXor;
  if (is_bitwise && !is_integer) throw nb::value_error("a bitwise reduction takes integers");
}

void CheckSameType(const ConstArray& input, const Array& output) {
  if (input.dtype() != output.dtype()) throw nb::type_error("input and output have different dtypes");
}

void CheckAligned(const void* data, DType type) {
  if (reinterpret_cast<uintptr_t>(data) % SizeOf(type) == 0) return;
  throw nb::value_error(absl::StrCat("the array does not begin at a multiple of ", SizeOf(type),
                                     " bytes, the size of its elements: give a copy of it")
                            .c_str());
}

std::vector<int64_t> PartCounts(const EngineGroup& group, int64_t total,
                                const std::optional<std::vector<int64_t>>& counts) {
  if (!counts) {
    if (total % group.size() != 0) {
      throw nb::value_error(absl::StrCat(total, " elements do not divide among ", group.size(),
                                         " ranks; give counts, or pad the array")
                                .c_str());
    }
    return std::vector<int64_t>(static_cast<size_t>(group.size()), total / group.size());
  }
  const auto refuse = [&](const auto& sum) {
    throw nb::value_error(absl::StrCat("expected ", group.size(), " counts that add up to ", total, ", got ",
                                       counts->size(), " that add up to ", sum)
                              .c_str());
  };
  int64_t sum = 0;
  for (const int64_t count : *counts) {
    if (count < 0) throw nb::value_error("a count is negative");
    if (count > total - sum) refuse("more");
    sum += count;
  }
  if (static_cast<int>(counts->size()) != group.size() || sum != total) refuse(sum);
  return *counts;
}

void CheckPart(const EngineGroup& group, size_t elements, const std::vector<int64_t>& counts) {
  const int64_t expected = counts[static_cast<size_t>(group.rank())];
  if (static_cast<int64_t>(elements) == expected) return;
  throw nb::value_error(
      absl::StrCat("the part of rank ", group.rank(), " has ", elements, " elements, expected ", expected)
          .c_str());
}

void CheckPlace(const EngineGroup& group, const ArrayBytes& part, const ArrayBytes& whole,
                const std::vector<int64_t>& counts) {
  if (part.size == 0) return;
  const std::less<const char*> is_before;
  if (!is_before(part.begin, whole.begin + whole.size) || !is_before(whole.begin, part.begin + part.size)) {
    return;
  }
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + group.rank(), int64_t{0});
  if (part.begin == whole.begin + before * part.element_size) return;
  throw nb::value_error(absl::StrCat("input and output share memory, but neither is the part of rank ",
                                     group.rank(), " in the other: give that part, or a copy")
                            .c_str());
}

void CheckRank(const EngineGroup& group, int rank, std::string_view what) {
  if (rank >= 0 && rank < group.size()) return;
  throw nb::value_error(
      absl::StrCat(std::string(what), " ", rank, " is not a rank of a group of ", group.size()).c_str());
}

std::string FaultOf(const nb::object& object) {
  nb::ndarray<nb::ro> any;
  if (!nb::try_cast(object, any, /*convert=*/false)) {
    const std::string type = nb::type_name(object.type()).c_str();
    std::string dtype;
    if (nb::hasattr(object, "dtype")) {
      const nb::object value = object.attr("dtype");
      dtype = absl::StrCat(" of dtype ", nb::str(value).c_str());
    }
    return absl::StrCat(
        "a ", type, dtype, " cannot be moved: give a numpy array of numbers in native byte order, or ",
        "another array that supports DLPack, such as the detach() of a tensor with gradients");
  }
  ConstArray readable;
  if (!nb::try_cast(object, readable, /*convert=*/false)) {
    return "the array is not C-contiguous, or not on the CPU: give a contiguous copy of it";
  }
  return "the array is read-only, but the collective writes to it: give a copy of it";
}

}  // namespace weft::python
