#include "weft/train/weights_hash.h"

#include <atomic>
#include <cstring>

#include "weft/core/hash.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr int64_t kGrain = 1 << 14;  // Elements per task of the parallel loop.

uint64_t DigestOfElement(int64_t index, float value) {
  char key[sizeof(index) + sizeof(value)];
  std::memcpy(key, &index, sizeof(index));
  std::memcpy(key + sizeof(index), &value, sizeof(value));
  return Hash64(key, sizeof(key));
}

}  // namespace

uint64_t DigestOfElements(int64_t first, absl::Span<const float> values) {
  std::atomic<uint64_t> digest{0};
  ParallelFor(static_cast<int64_t>(values.size()), kGrain, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += DigestOfElement(first + i, values[static_cast<size_t>(i)]);
    }
    digest.fetch_add(sum, std::memory_order_relaxed);
  });
  return digest.load(std::memory_order_relaxed);
}

uint64_t WeightsHash(const std::map<std::string, uint64_t>& digests) {
  std::string bytes;
  for (const auto& [name, digest] : digests) {
    bytes.append(name).push_back('\0');
    bytes.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
  }
  return Hash64(bytes);
}

}  // namespace weft
