// Values by formula, and checksums of results, with which contestants in C++ and Python start from the same
// numbers and compare what they computed. bench/peers/formula.py has the same.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "bench/contestant.h"

namespace weft::bench {

// splitmix64 of an element's index in the sequence that starts at `key`.
inline uint64_t HashOf(uint64_t key, int64_t index) {
  uint64_t z = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15 + key;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Writes elements [start, start + count) of the array `name`: uniform with mean 0, from a hash of the name
// (FNV-1a) and the element's index.
inline void FillUniform(std::string_view name, double deviation, int64_t start, int64_t count, float* out) {
  uint64_t key = 0xcbf29ce484222325;
  for (const char letter : name) key = (key ^ static_cast<uint8_t>(letter)) * 0x100000001b3;
  const auto spread = static_cast<float>(2 * deviation * std::sqrt(3.0));
  for (int64_t i = 0; i < count; ++i) {
    out[i] = (static_cast<float>(HashOf(key, start + i) >> 40) * 0x1p-24F - 0.5F) * spread;
  }
}

// Checksums of an array: for every run of 1,024 elements, the sum of the elements, each with a sign by a hash
// of its index, and the sum of their squares. Parts of one array may be added in any order.
class Checksums {
 public:
  explicit Checksums(int64_t elements)
      : sums_(static_cast<size_t>((elements + kRun - 1) / kRun)), squares_(sums_.size()) {}

  // Adds elements [start, start + count).
  void Add(const float* values, int64_t start, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto run = static_cast<size_t>((start + i) / kRun);
      const double value = values[i];
      sums_[run] += HashOf(0, start + i) >> 63 != 0 ? -value : value;
      squares_[run] += value * value;
    }
  }
  // "<name>.sums" and "<name>.squares".
  void AddTo(Reply& reply, const std::string& name) const {
    reply[name + ".sums"] = sums_;
    reply[name + ".squares"] = squares_;
  }

 private:
  static constexpr int64_t kRun = 1024;
  std::vector<double> sums_, squares_;
};

}  // namespace weft::bench
