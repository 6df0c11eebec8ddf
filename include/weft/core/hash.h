// 64-bit content hashes (XXH3 of xxHash), used as identifiers and to compare results bit by bit.
//
// Not cryptographic. The values are the same in every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t Hash64(std::string_view text, uint64_t seed = 0) {
  return Hash64(text.data(), text.size(), seed);
}
// Hash of the ordered pair (a, b).
uint64_t HashCombine(uint64_t a, uint64_t b);
// The 16 hexadecimal digits of a hash.
std::string HashText(uint64_t hash);

}  // namespace weft
