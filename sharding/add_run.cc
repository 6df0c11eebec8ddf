#include "sharding/add_run.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

constexpr int64_t kBlock = 1024;  // Two of them fit the first-level cache beside what they came from.
constexpr int64_t kGrain = 64 * kBlock;

using Block = std::array<float, kBlock>;

}  // namespace

void AddRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
            float scale) {
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    Block addend;
    Block sum;
    for (int64_t start = begin; start < end; start += kBlock) {
      const int64_t block = std::min(kBlock, end - start);
      std::byte* place = to + start * static_cast<int64_t>(SizeOf(target_dtype));
      ConvertRun(from + start * static_cast<int64_t>(SizeOf(source_dtype)), source_dtype, addend.data(),
                 DType::kF32, block, scale);
      ConvertRun(place, target_dtype, sum.data(), DType::kF32, block);
      for (size_t i = 0; i < static_cast<size_t>(block); ++i) sum[i] += addend[i];
      ConvertRun(sum.data(), DType::kF32, place, target_dtype, block);
    }
  });
}

}  // namespace weft
