// Seeded random draws, identical on every platform.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace weft::testing {

class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : random_(seed) {}
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }
  template <typename T>
  T OneOf(std::initializer_list<T> choices) {
    return choices.begin()[Between(0, static_cast<int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace weft::testing
