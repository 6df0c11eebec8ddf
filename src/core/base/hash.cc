#include "weft/core/hash.h"

#include <array>

#include <absl/strings/str_cat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t HashCombine(uint64_t a, uint64_t b) {
  const std::array<uint64_t, 2> pair = {a, b};
  return Hash64(pair.data(), sizeof(pair));
}

std::string HashText(uint64_t hash) { return absl::StrCat(absl::Hex(hash, absl::kZeroPad16)); }

}  // namespace weft
