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

using Block = std::array<float, kBlock>;

WEFT_VECTOR_CLONES void AddFloats(const float* __restrict source, float* __restrict target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) target[i] += source[i];
}

void AddConverted(const std::byte* from, DType source_dtype, std::byte* to, DType target_dtype, int64_t count,
                  float scale) {
  Block addend;
  Block sum;
  const auto source_bytes = static_cast<int64_t>(SizeOf(source_dtype));
  const auto target_bytes = static_cast<int64_t>(SizeOf(target_dtype));
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t block = std::min(kBlock, count - start);
    std::byte* place = to + start * target_bytes;
    ConvertRun(from + start * source_bytes, source_dtype, addend.data(), DType::kF32, block, scale);
    ConvertRun(place, target_dtype, sum.data(), DType::kF32, block);
    for (size_t i = 0; i < static_cast<size_t>(block); ++i) sum[i] += addend[i];
    ConvertRun(sum.data(), DType::kF32, place, target_dtype, block);
  }
}

}  // namespace

void AddRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
            float scale) {
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  const bool plain = source_dtype == DType::kF32 && target_dtype == DType::kF32 && scale == 1.0F;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    const std::byte* first = from + begin * static_cast<int64_t>(SizeOf(source_dtype));
    std::byte* place = to + begin * static_cast<int64_t>(SizeOf(target_dtype));
    if (plain) {
      AddFloats(reinterpret_cast<const float*>(first), reinterpret_cast<float*>(place), end - begin);
    } else {
      AddConverted(first, source_dtype, place, target_dtype, end - begin, scale);
    }
  });
}

}  // namespace weft
