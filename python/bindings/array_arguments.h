// Checks of what Python gives to collectives of arrays. What is wrong with an argument is a TypeError or a
// ValueError that names the remedy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nanobind/ndarray.h>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "python/bindings/engine_group.h"
#include "weft/comm/element_enums.h"
#include "weft/core/dtype_enum.h"

namespace weft::python {

using DTypeCode = nanobind::dlpack::dtype_code;

using Array = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;
using ConstArray = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;

// Nothing for a dtype that the engine does not know.
std::optional<DType> KnownTypeOf(const nanobind::dlpack::dtype& dtype);
DType TypeOf(const nanobind::dlpack::dtype& dtype);
ReduceOp ReductionOf(std::string_view name);
void CheckReduction(ReduceOp reduction, DType type);
void CheckSameType(const ConstArray& input, const Array& output);
void CheckAligned(const void* data, DType type);

// An array that has elements must begin at a multiple of the size of `type`, the type in which they move.
template <typename AnyArray>
void CheckAligned(const AnyArray& array, DType type) {
  if (array.size() > 0) CheckAligned(static_cast<const void*>(array.data()), type);
}

// The counts of the ranks' parts of `total` elements. Without `counts`: equal parts.
std::vector<int64_t> PartCounts(const EngineGroup& group, int64_t total,
                                const std::optional<std::vector<int64_t>>& counts);
// The part of this rank must have its count of elements.
void CheckPart(const EngineGroup& group, size_t elements, const std::vector<int64_t>& counts);

struct ArrayBytes {
  const char* begin;
  size_t size;
  int64_t element_size;
};
template <typename AnyArray>
ArrayBytes BytesOf(const AnyArray& array) {
  return {static_cast<const char*>(array.data()), array.nbytes(), static_cast<int64_t>(array.itemsize())};
}
// A part that shares memory with the array of all parts must be this rank's part of it.
void CheckPlace(const EngineGroup& group, const ArrayBytes& part, const ArrayBytes& whole,
                const std::vector<int64_t>& counts);

// `what`: the rank in the message, as in "root".
void CheckRank(const EngineGroup& group, int rank, std::string_view what);

// Why an object is not an array that a collective takes, with the remedy.
std::string FaultOf(const nanobind::object& object);

template <typename AnyArray>
AnyArray ArrayOf(const nanobind::object& object) {
  AnyArray array;
  if (!nanobind::try_cast(object, array, /*convert=*/false)) {
    throw nanobind::type_error(FaultOf(object).c_str());
  }
  return array;
}

}  // namespace weft::python
