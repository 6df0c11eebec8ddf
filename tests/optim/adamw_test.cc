#include "weft/optim/adamw.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

float ValueAt(int64_t index) { return std::sin(static_cast<float>(index) * 1.7F) * 0.5F; }

struct State {
  std::vector<float> param, grad, first, second;

  explicit State(int64_t count) : first(static_cast<size_t>(count)), second(static_cast<size_t>(count)) {
    for (int64_t i = 0; i < count; ++i) param.push_back(ValueAt(i));
  }
  void SetGradients(int64_t step) {
    grad.clear();
    for (size_t i = 0; i < param.size(); ++i)
      grad.push_back(ValueAt(static_cast<int64_t>(i) * 31 + step * 1009));
  }
  AdamWSlice Slice(int64_t begin, int64_t end) {
    return {param.data() + begin, grad.data() + begin, first.data() + begin, second.data() + begin,
            end - begin};
  }
};

TEST(AdamW, MatchesTheFormulaInDouble) {
  const AdamWOptions options = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.2};
  constexpr int64_t kCount = 133;
  constexpr double kScale = 0.5;
  State state(kCount);
  std::vector<double> param(state.param.begin(), state.param.end());
  std::vector<double> first(kCount);
  std::vector<double> second(kCount);
  for (int64_t step = 1; step <= 20; ++step) {
    state.SetGradients(step);
    AdamWStep({state.Slice(0, kCount)}, options, step, static_cast<float>(kScale));
    for (size_t i = 0; i < kCount; ++i) {
      const double g = state.grad[i] * kScale;
      param[i] *= 1.0 - options.lr * options.weight_decay;
      first[i] = options.beta1 * first[i] + (1.0 - options.beta1) * g;
      second[i] = options.beta2 * second[i] + (1.0 - options.beta2) * g * g;
      const double m = first[i] / (1.0 - std::pow(options.beta1, static_cast<double>(step)));
      const double v = second[i] / (1.0 - std::pow(options.beta2, static_cast<double>(step)));
      param[i] -= options.lr * m / (std::sqrt(v) + options.eps);
      ASSERT_NEAR(state.param[i], param[i], 2e-6) << "element " << i << ", step " << step;
    }
  }
}

TEST(AdamW, CastsTheUpdatedParametersInTheSamePass) {
  for (const int64_t count : {0, 1, 7, 16, 31, 70001}) {
    State plain(count);
    State cast(count);
    for (int64_t step = 1; step <= 2; ++step) {
      plain.SetGradients(step);
      cast.SetGradients(step);
      AdamWStep({plain.Slice(0, count)}, {.lr = 0.01}, step, 0.5);
      std::vector<BF16> expected(static_cast<size_t>(count));
      ConvertRun(plain.param.data(), DType::kF32, expected.data(), DType::kBF16, count);
      std::vector<BF16> written(static_cast<size_t>(count) + 1, BF16{0x1234});
      AdamWSlice slice = cast.Slice(0, count);
      slice.cast = written.data();
      AdamWStep({slice}, {.lr = 0.01}, step, 0.5);
      EXPECT_EQ(cast.param, plain.param) << count;
      for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(written[i].bits, expected[i].bits) << i;
      EXPECT_EQ(written.back().bits, 0x1234);
    }
  }
}

TEST(AdamW, UpdatesDoublesInDouble) {
  const AdamWOptions options = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.2};
  double param = 0.7;
  double first = 0.0;
  double second = 0.0;
  double expected = param;
  double m = 0.0;
  double v = 0.0;
  for (int64_t step = 1; step <= 20; ++step) {
    const double grad = static_cast<double>(ValueAt(step)) / 3.0;
    AdamWStep({AdamWSliceOf<double>{&param, &grad, &first, &second, 1}}, options, step, 1.0 / 3.0);
    const double g = grad / 3.0;
    m += (1.0 - options.beta1) * (g - m);
    v = options.beta2 * v + (1.0 - options.beta2) * g * g;
    const double first_correction = 1.0 - std::pow(options.beta1, static_cast<double>(step));
    const double second_correction = 1.0 - std::pow(options.beta2, static_cast<double>(step));
    expected -= expected * options.lr * options.weight_decay;
    expected -= options.lr * (m / first_correction) / (std::sqrt(v / second_correction) + options.eps);
    ASSERT_NEAR(param, expected, 1e-15) << "step " << step;
  }
}

TEST(AdamW, GivesTheSameBitsForEveryDivisionIntoSlices) {
  constexpr int64_t kCount = 100003;
  const auto run = [](std::vector<int64_t> cuts, int threads) {
    const int before = ThreadCount();
    SetThreadCount(threads);
    State state(kCount);
    for (int64_t step = 1; step <= 3; ++step) {
      state.SetGradients(step);
      std::vector<AdamWSlice> slices;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) slices.push_back(state.Slice(cuts[i], cuts[i + 1]));
      AdamWStep(slices, {}, step, 0.3F);
    }
    SetThreadCount(before);
    return state.param;
  };
  const std::vector<float> whole = run({0, kCount}, 1);
  EXPECT_EQ(run({0, 1, 2, 37, 37, 1000, 99999, kCount}, 1), whole);
  EXPECT_EQ(run({0, kCount}, 3), whole);
}

TEST(AdamW, OnlyDecaysWhenTheGradientIsZero) {
  State state(1);
  state.param[0] = 2.0F;
  state.grad = {0.0F};
  AdamWStep({state.Slice(0, 1)}, {.lr = 0.1, .weight_decay = 0.5}, 1);
  EXPECT_FLOAT_EQ(state.param[0], 2.0F * 0.95F);
}

}  // namespace
}  // namespace weft
