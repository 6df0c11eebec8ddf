#include "src/train/generate/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// Tokens 0 to 3 with the probabilities 0.1, 0.4, 0.2 and 0.3.
std::array<float, 4> SomeLogits() { return {std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)}; }

// Shares of the tokens in many draws.
std::array<double, 4> Draw(const SamplingOptions& options) {
  constexpr int kDraws = 20000;
  Sampler sampler(options);
  std::array<double, 4> shares{};
  const std::array<float, 4> logits = SomeLogits();
  for (int i = 0; i < kDraws; ++i) {
    const absl::StatusOr<int32_t> token = sampler.Next(logits);
    EXPECT_OK(token.status());
    shares[static_cast<size_t>(token.value_or(0))] += 1.0 / kDraws;
  }
  return shares;
}

void ExpectShares(const std::array<double, 4>& shares, const std::array<double, 4>& expected) {
  // About four standard deviations.
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(shares[i], expected[i], expected[i] == 0 ? 0 : 0.015) << i;
}

TEST(Sampler, TakesTheFirstOfTheLargestLogitsWithoutATemperature) {
  const std::array<float, 4> logits = {1, 3, 3, 2};
  EXPECT_EQ(*Sampler({}).Next(logits), 1);
}

TEST(Sampler, DrawsTokensWithTheirProbabilities) {
  ExpectShares(Draw({.temperature = 1}), {0.1, 0.4, 0.2, 0.3});
  // Roots of the probabilities, normalized.
  ExpectShares(Draw({.temperature = 2}), {0.1627, 0.3254, 0.2301, 0.2818});
}

TEST(Sampler, LeavesOutUnlikelyTokens) {
  ExpectShares(Draw({.temperature = 1, .top_k = 2}), {0, 4.0 / 7, 0, 3.0 / 7});
  ExpectShares(Draw({.temperature = 1, .top_p = 0.69}), {0, 4.0 / 7, 0, 3.0 / 7});
  ExpectShares(Draw({.temperature = 1, .top_p = 0.75}), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  ExpectShares(Draw({.temperature = 1, .top_k = 3, .top_p = 0.01}), {0, 1, 0, 0});
}

// The token that a sort of all tokens gives. `random`: from 0 to 1.
int32_t TokenOfSort(absl::Span<const float> logits, const SamplingOptions& options, double random) {
  std::vector<std::pair<int32_t, double>> tokens;
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    tokens.emplace_back(static_cast<int32_t>(i), std::exp((logits[i] - largest) / options.temperature));
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto sum = [&] {
    return std::accumulate(tokens.begin(), tokens.end(), 0.0,
                           [](double before, const auto& token) { return before + token.second; });
  };
  if (options.top_k) tokens.resize(std::min(tokens.size(), static_cast<size_t>(*options.top_k)));
  if (options.top_p) {
    const double least = *options.top_p * sum();
    double reached = tokens[0].second;
    size_t count = 1;
    while (count < tokens.size() && reached < least) reached += tokens[count++].second;
    tokens.resize(count);
  }
  double left = random * sum();
  for (const auto& [token, weight] : tokens) {
    if ((left -= weight) < 0) return token;
  }
  return tokens.back().first;
}

TEST(Sampler, DrawsTheTokensThatASortOfAllTokensGives) {
  std::mt19937_64 values(1);
  for (const size_t size : {1, 2, 3, 17, 1000}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = static_cast<float>(values() % 16) / 3;  // Many are equal.
    for (const auto top_k : std::vector<std::optional<int64_t>>{std::nullopt, 1, 2, 7, 5000}) {
      for (const auto top_p : std::vector<std::optional<double>>{std::nullopt, 1e-9, 0.37, 0.9, 1.0}) {
        const SamplingOptions options{.temperature = 0.7, .top_k = top_k, .top_p = top_p, .seed = 3};
        Sampler sampler(options);
        std::mt19937_64 random(3);
        for (int draw = 0; draw < 50; ++draw) {
          const double expected = static_cast<double>(random() >> 11) * 0x1p-53;
          ASSERT_EQ(*sampler.Next(logits), TokenOfSort(logits, options, expected)) << size << " " << draw;
        }
      }
    }
  }
}

TEST(Sampler, RepeatsItsDrawsWithItsSeedOnly) {
  EXPECT_EQ(Draw({.temperature = 1, .seed = 1}), Draw({.temperature = 1, .seed = 1}));
  EXPECT_NE(Draw({.temperature = 1, .seed = 1}), Draw({.temperature = 1, .seed = 2}));
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  const std::array<float, 2> logits = {0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THAT(Sampler({}).Next(logits), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("token 1")));
}

}  // namespace
}  // namespace weft
