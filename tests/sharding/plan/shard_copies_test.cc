#include "sharding/plan/shard_copies.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sharding/support/random_layout.h"

namespace weft::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Exact in 16 bits, and different for adjacent elements.
float ValueOf(int parameter, int64_t element) {
  return static_cast<float>((element * 7 + parameter * 31) % 251);
}

std::vector<float> Convert(const std::vector<float>& values, DType to) {
  std::vector<float> bits(values.size());  // Large enough for any dtype.
  ConvertRun(values.data(), DType::kF32, bits.data(), to, static_cast<int64_t>(values.size()));
  return bits;
}
std::vector<float> ConvertBack(const std::vector<float>& bits, DType from) {
  std::vector<float> values(bits.size());
  ConvertRun(bits.data(), from, values.data(), DType::kF32, static_cast<int64_t>(values.size()));
  return values;
}

// The gradient image; NaN in the gaps.
std::vector<float> GradientImage(const FlatLayout& layout) {
  std::vector<float> image(static_cast<size_t>(layout.gradient_image_elements()), kNan);
  for (int p = 0; p < static_cast<int>(layout.parameters().size()); ++p) {
    const FlatParameter& parameter = layout.parameters()[static_cast<size_t>(p)];
    if (!parameter.trainable) continue;
    for (int64_t i = 0; i < ElementCount(parameter.shape); ++i)
      image[static_cast<size_t>(layout.image_offset(p) + i)] = ValueOf(p, i);
  }
  return image;
}

// The image of all parameters; NaN in the gaps.
std::vector<float> Image(const FlatLayout& layout) {
  std::vector<float> image(static_cast<size_t>(layout.image_elements()), kNan);
  for (int p = 0; p < static_cast<int>(layout.parameters().size()); ++p) {
    const int64_t elements = ElementCount(layout.parameters()[static_cast<size_t>(p)].shape);
    for (int64_t i = 0; i < elements; ++i)
      image[static_cast<size_t>(layout.image_offset(p) + i)] = ValueOf(p, i);
  }
  return image;
}

// Buffer of the shards of all ranks, each from `start(rank)`, with the pieces of the parameters that are
// `wanted`. The rest is NaN.
template <typename Start, typename Wanted>
std::vector<float> Shards(const FlatLayout& layout, int64_t elements, Start start, Wanted wanted) {
  std::vector<float> shards(static_cast<size_t>(elements), kNan);
  for (int rank = 0; rank < layout.shard_size(); ++rank) {
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      if (!wanted(layout.parameters()[static_cast<size_t>(piece.parameter)])) continue;
      int64_t place = start(rank) + piece.shard_offset;
      for (int64_t run = 0; run < piece.runs; ++run) {
        for (int64_t i = 0; i < piece.run_length; ++i) {
          shards[static_cast<size_t>(place++)] =
              ValueOf(piece.parameter, piece.start + run * piece.run_stride + i);
        }
      }
    }
  }
  return shards;
}

std::vector<float> Gathered(const FlatLayout& layout) {
  return Shards(
      layout, layout.gathered_elements(), [&](int rank) { return layout.gathered_offset(rank); },
      [](const FlatParameter&) { return true; });
}

std::vector<float> ReduceInput(const FlatLayout& layout) {
  return Shards(
      layout, layout.reduced_elements(), [&](int rank) { return layout.reduced_offset(rank); },
      [](const FlatParameter& parameter) { return parameter.trainable; });
}

// Expects equal values, and NaN in the same places. NaN marks padding: padding that was written has lost it,
// and padding that was read has copied it.
void ExpectSame(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i])))
        << "at " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

class ShardCopies : public ::testing::TestWithParam<std::pair<DType, DType>> {};

TEST_P(ShardCopies, CopyEveryElementOutAndNeverReadPadding) {
  const auto [from, to] = GetParam();
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    const FlatLayout layout = MakeRandomGroup(seed).Layout();
    std::vector<float> image =
        Convert(std::vector<float>(static_cast<size_t>(layout.image_elements()), kNan), to);
    const int64_t bytes =
        RunCopies(PlanCopyOut(layout, from, to), Convert(Gathered(layout), from).data(), image.data());
    ExpectSame(ConvertBack(image, to), Image(layout));
    EXPECT_EQ(bytes, BytesOf(layout.parameter_elements(), to));
  }
}

TEST_P(ShardCopies, CopyEveryGradientInAndNeverWritePadding) {
  const auto [from, to] = GetParam();
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    const FlatLayout layout = MakeRandomGroup(seed).Layout();
    std::vector<float> input =
        Convert(std::vector<float>(static_cast<size_t>(layout.reduced_elements()), kNan), to);
    const int64_t bytes = RunCopies(PlanGradientCopyIn(layout, from, to),
                                    Convert(GradientImage(layout), from).data(), input.data());
    ExpectSame(ConvertBack(input, to), ReduceInput(layout));
    EXPECT_EQ(bytes, BytesOf(layout.trainable_elements(), to));
  }
}

TEST_P(ShardCopies, RoundTripWithoutAChange) {
  const auto [from, to] = GetParam();
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    RandomGroup group = MakeRandomGroup(seed);
    for (FlatParameter& parameter : group.parameters) parameter.trainable = true;
    const FlatLayout layout = group.Layout();
    const auto nan_buffer = [&layout](DType dtype) {
      return Convert(
          std::vector<float>(
              static_cast<size_t>(std::max(layout.image_elements(), layout.gathered_elements())), kNan),
          dtype);
    };
    const std::vector<float> image = Convert(Image(layout), from);
    std::vector<float> gathered = nan_buffer(to);
    std::vector<float> copied_back = nan_buffer(from);
    RunCopies(PlanGradientCopyIn(layout, from, to), image.data(), gathered.data());
    RunCopies(PlanCopyOut(layout, to, from), gathered.data(), copied_back.data());
    copied_back.resize(image.size());
    ExpectSame(ConvertBack(copied_back, from), Image(layout));
  }
}

TEST(ShardCopiesOnce, CopyTheShardsOfNeighborsOutOfTheImage) {
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    const DType dtype = seed % 2 == 0 ? DType::kF32 : DType::kBF16;
    const FlatLayout layout = MakeRandomGroup(seed).Layout();
    const int begin = static_cast<int>(seed) % layout.shard_size();
    const int end = begin + static_cast<int>(seed / 7) % (layout.shard_size() - begin) + 1;
    const int64_t first = layout.gathered_offset(begin);
    const int64_t last = layout.gathered_offset(end);
    std::vector<float> part = Convert(std::vector<float>(static_cast<size_t>(last - first), kNan), dtype);
    RunCopies(PlanShardCopies(layout, begin, end, dtype), Convert(Image(layout), dtype).data(), part.data());
    const std::vector<float> gathered = Gathered(layout);
    ExpectSame(ConvertBack(part, dtype), {gathered.begin() + first, gathered.begin() + last});
  }
}

TEST(ShardCopiesOnce, ScaleGradientsOnTheWayIn) {
  const FlatLayout layout = *FlatLayout::Make(FlatKind::kPerParameter, {{{2, 3}, 1}}, 1, 16);
  const std::vector<float> image = {1, 2, 3, 4, 5, 6};
  std::vector<float> input(16);
  RunCopies(PlanGradientCopyIn(layout, DType::kF32, DType::kF32), image.data(), input.data(), 0.5F);
  EXPECT_EQ(std::vector<float>(input.begin(), input.begin() + 6),
            (std::vector<float>{0.5F, 1, 1.5F, 2, 2.5F, 3}));
}

INSTANTIATE_TEST_SUITE_P(
    DTypes, ShardCopies,
    ::testing::Values(std::pair(DType::kF32, DType::kF32), std::pair(DType::kF32, DType::kBF16),
                      std::pair(DType::kBF16, DType::kF32), std::pair(DType::kBF16, DType::kBF16),
                      std::pair(DType::kF32, DType::kF16)),
    [](const auto& dtypes) {
      return std::string(Name(dtypes.param.first)) + "To" + std::string(Name(dtypes.param.second));
    });

}  // namespace
}  // namespace weft::testing
