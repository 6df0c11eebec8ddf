#include "weft/nn/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "src/nn/kernels/philox.h"
#include "weft/core/hash.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Elements per Philox block.
constexpr int64_t kBlock = 4;

// Two standard normals from two 32-bit words (Box and Muller, 1958). In double: the rounding to float then
// removes differences in the last place between libm implementations.
void BoxMuller(uint32_t radius_bits, uint32_t angle_bits, double* normals) {
  // In (0, 1], so that the logarithm is finite.
  const double uniform = (static_cast<double>(radius_bits) + 1.0) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(uniform));
  const double angle = 2.0 * std::numbers::pi * (static_cast<double>(angle_bits) * 0x1p-32);
  normals[0] = radius * std::cos(angle);
  normals[1] = radius * std::sin(angle);
}

// Values of mean 0 and variance 1.
std::array<double, kBlock> StandardBlock(Initializer::Kind kind, int64_t block, uint64_t key) {
  const auto index = static_cast<uint64_t>(block);
  const auto words = Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                                {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  std::array<double, kBlock> values;
  if (kind == Initializer::Kind::kNormal) {
    BoxMuller(words[0], words[1], values.data());
    BoxMuller(words[2], words[3], values.data() + 2);
    return values;
  }
  for (size_t i = 0; i < words.size(); ++i) {
    // Within (-1, 1), and symmetric.
    const double uniform = (static_cast<double>(words[i]) + 0.5) * 0x1p-31 - 1.0;
    values[i] = std::numbers::sqrt3 * uniform;
  }
  return values;
}

}  // namespace

void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t start, int64_t count, float* out) {
  WEFT_CHECK(start >= 0 && count >= 0 && start + count <= parameter.elements(),
             absl::StrCat("initial values were requested outside the elements of ", parameter.name));
  const Initializer initializer = parameter.initializer;
  if (count == 0) return;
  if (initializer.kind == Initializer::Kind::kConstant) {
    std::fill_n(out, count, initializer.mean);
    return;
  }
  const uint64_t key = HashCombine(seed, Hash64(parameter.name));
  const int64_t first_block = start / kBlock;
  const int64_t blocks = (start + count - 1) / kBlock - first_block + 1;
  ParallelFor(blocks, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = first_block + begin; block < first_block + end; ++block) {
      const std::array<double, kBlock> values = StandardBlock(initializer.kind, block, key);
      const int64_t element = block * kBlock;
      const int64_t from = std::max(start, element);
      const int64_t to = std::min(start + count, element + kBlock);
      for (int64_t i = from; i < to; ++i) {
        out[i - start] = static_cast<float>(initializer.mean +
                                            initializer.stddev * values[static_cast<size_t>(i - element)]);
      }
    }
  });
}

}  // namespace weft
