#include "sharding/shard_copies.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sharding/random_layout.h"

namespace weft {
namespace {

using testing::kRandomGroups;
using testing::MakeRandomGroup;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Exact in bf16 and different for neighbours.
float ValueOf(int parameter, int64_t element) {
  return static_cast<float>((element * 7 + parameter * 31) % 251);
}

std::vector<float> Convert(const std::vector<float>& values, DType to) {
  std::vector<float> bits(values.size());  // At least as large as any dtype needs.
  ConvertRun(values.data(), DType::kF32, bits.data(), to, static_cast<int64_t>(values.size()));
  return bits;
}
std::vector<float> ConvertBack(const std::vector<float>& bits, DType from) {
  std::vector<float> values(bits.size());
  ConvertRun(bits.data(), from, values.data(), DType::kF32, static_cast<int64_t>(values.size()));
  return values;
}

// All parameters whole; NaN in the gaps.
std::vector<float> Image(const FlatLayout& layout) {
  std::vector<float> image(static_cast<size_t>(layout.image_elements()), kNan);
  for (int p = 0; p < static_cast<int>(layout.parameters().size()); ++p) {
    const int64_t elements = ElementCount(layout.parameters()[static_cast<size_t>(p)].shape);
    for (int64_t i = 0; i < elements; ++i)
      image[static_cast<size_t>(layout.image_offset(p) + i)] = ValueOf(p, i);
  }
  return image;
}

// The shards of all ranks, filled piece by piece; NaN in the padding.
std::vector<float> Gathered(const FlatLayout& layout) {
  std::vector<float> gathered(static_cast<size_t>(layout.gathered_elements()), kNan);
  for (int rank = 0; rank < layout.shard_size(); ++rank) {
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      int64_t place = rank * layout.shard_elements() + piece.shard_offset;
      for (int64_t run = 0; run < piece.runs; ++run) {
        for (int64_t i = 0; i < piece.run_length; ++i) {
          gathered[static_cast<size_t>(place++)] =
              ValueOf(piece.parameter, piece.start + run * piece.run_stride + i);
        }
      }
    }
  }
  return gathered;
}

// Equal, with NaN equal to NaN: what was not to be touched has stayed NaN, and no NaN has been read.
void ExpectSame(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i])))
        << "at " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

class ShardCopies : public ::testing::TestWithParam<std::pair<DType, DType>> {};

TEST_P(ShardCopies, BringEveryElementOutAndNeverReadPadding) {
  const auto [from, to] = GetParam();
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    const FlatLayout layout = MakeRandomGroup(seed).Layout();
    std::vector<float> image =
        Convert(std::vector<float>(static_cast<size_t>(layout.image_elements()), kNan), to);
    const int64_t bytes =
        RunCopies(PlanCopyOut(layout, from, to), Convert(Gathered(layout), from).data(), image.data());
    ExpectSame(ConvertBack(image, to), Image(layout));
    EXPECT_EQ(bytes, layout.parameter_elements() * static_cast<int64_t>(SizeOf(to)));
  }
}

TEST_P(ShardCopies, BringEveryElementInAndNeverWritePadding) {
  const auto [from, to] = GetParam();
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    const FlatLayout layout = MakeRandomGroup(seed).Layout();
    std::vector<float> gathered =
        Convert(std::vector<float>(static_cast<size_t>(layout.gathered_elements()), kNan), to);
    const int64_t bytes =
        RunCopies(PlanCopyIn(layout, from, to), Convert(Image(layout), from).data(), gathered.data());
    ExpectSame(ConvertBack(gathered, to), Gathered(layout));
    EXPECT_EQ(bytes, layout.parameter_elements() * static_cast<int64_t>(SizeOf(to)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    DTypes, ShardCopies,
    ::testing::Values(std::pair(DType::kF32, DType::kF32), std::pair(DType::kF32, DType::kBF16),
                      std::pair(DType::kBF16, DType::kF32), std::pair(DType::kBF16, DType::kBF16)),
    [](const auto& dtypes) {
      return std::string(Name(dtypes.param.first)) + "To" + std::string(Name(dtypes.param.second));
    });

}  // namespace
}  // namespace weft
