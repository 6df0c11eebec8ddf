// The median of some numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "weft/core/status.h"

namespace weft {

// The middle value, or the mean of the two middle ones. REQUIRES: values is not empty, and has no NaN.
inline double Median(std::vector<double> values) {
  WEFT_CHECK(!values.empty(), "there is no median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace weft
