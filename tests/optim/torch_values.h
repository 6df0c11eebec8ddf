// Parameters and gradients with which PyTorch's optimizers computed the expected values of the tests.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::testing {

inline std::vector<float> FixtureParam(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(static_cast<double>(i * 29 % 31) / 31.0 - 0.5));
  }
  return values;
}

inline std::vector<float> FixtureGrad(int64_t step, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(static_cast<double>((i * 37 + step * 53) % 101) / 50.0 - 1.0));
  }
  return values;
}

}  // namespace weft::testing
