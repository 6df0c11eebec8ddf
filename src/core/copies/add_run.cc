#include "weft/core/add_run.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"
#include "weft/core/vector_clones.h"

namespace weft {
namespace {

constexpr int64_t kBlock = 1024;  // Elements. Two blocks and their source data fit the L1 cache.
constexpr int64_t kGrain = 64 * kBlock;

template <typename T>
WEFT_VECTOR_CLONES void AddPlain(const T* __restrict source, T* __restrict target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) target[i] += source[i];
}

// Computes in T, a float or a double.
template <typename T>
void AddConverted(const std::byte* from, DType source_dtype, std::byte* to, DType target_dtype, int64_t count,
                  double scale) {
  std::array<T, kBlock> addend;
  std::array<T, kBlock> sum;
  const auto source_bytes = static_cast<int64_t>(SizeOf(source_dtype));
  const auto target_bytes = static_cast<int64_t>(SizeOf(target_dtype));
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t block = std::min(kBlock, count - start);
    std::byte* place = to + start * target_bytes;
    ConvertRun(from + start * source_bytes, source_dtype, addend.data(), kDTypeOf<T>, block, scale);
    ConvertRun(place, target_dtype, sum.data(), kDTypeOf<T>, block);
    for (size_t i = 0; i < static_cast<size_t>(block); ++i) sum[i] += addend[i];
    ConvertRun(sum.data(), kDTypeOf<T>, place, target_dtype, block);
  }
}

template <typename T>
void AddIn(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
           double scale) {
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  const bool plain = source_dtype == kDTypeOf<T> && target_dtype == kDTypeOf<T> && scale == 1.0;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    const std::byte* first = from + BytesOf(begin, source_dtype);
    std::byte* place = to + BytesOf(begin, target_dtype);
    if (plain) {
      AddPlain(reinterpret_cast<const T*>(first), reinterpret_cast<T*>(place), end - begin);
    } else {
      AddConverted<T>(first, source_dtype, place, target_dtype, end - begin, scale);
    }
  });
}

}  // namespace

void AddRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
            double scale) {
  const bool in_double = source_dtype == DType::kF64 || target_dtype == DType::kF64;
  (in_double ? AddIn<double> : AddIn<float>)(source, source_dtype, target, target_dtype, count, scale);
}

}  // namespace weft
