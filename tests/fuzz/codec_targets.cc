#include <algorithm>
#include <cstring>
#include <vector>

#include "src/comm/codec/delta_codec.h"
#include "src/comm/codec/slice_codec.h"
#include "tests/fuzz/targets.h"
#include "weft/core/dtype.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr size_t kPrefixBytes = 2;
constexpr int64_t kMaxElements = 1024;

// The slice of an input, in a buffer of the size that a receiver has.
std::vector<std::byte> Slice(const uint8_t* data, size_t size, size_t capacity) {
  std::vector<std::byte> slice(capacity);
  std::memcpy(slice.data(), data + kPrefixBytes, std::min(capacity, size - kPrefixBytes));
  return slice;
}

int64_t ElementsOf(const uint8_t* data) { return (data[0] + 256 * data[1]) % kMaxElements; }

}  // namespace

int FuzzCompressedSlice(const uint8_t* data, size_t size) {
  if (size < kPrefixBytes) return 0;
  const DType dtype = data[1] < 128 ? DType::kF32 : DType::kBF16;
  const int64_t count = ElementsOf(data);
  const size_t capacity = CompressedCapacity(SizeOf(dtype), count);
  const std::vector<std::byte> slice = Slice(data, size, capacity);
  std::vector<std::byte> numbers(static_cast<size_t>(BytesOf(count, dtype)));
  if (!DecompressSlice(dtype, slice.data(), count, numbers.data())) return 0;
  std::vector<std::byte> again(capacity);
  WEFT_CHECK(CompressSlice(dtype, numbers.data(), count, again.data()) <= capacity,
             "a slice exceeds its capacity");
  std::vector<std::byte> same(numbers.size());
  WEFT_CHECK(DecompressSlice(dtype, again.data(), count, same.data()) && same == numbers, "numbers are lost");
  return 0;
}

int FuzzDelta(const uint8_t* data, size_t size) {
  if (size < kPrefixBytes) return 0;
  const int64_t count = ElementsOf(data);
  const std::vector<std::byte> delta = Slice(data, size, DeltaCapacity(count));
  const std::vector<std::byte> base(static_cast<size_t>(count) * sizeof(float));
  std::vector<std::byte> numbers = base;
  if (!ApplyDelta(delta.data(), count, numbers.data())) return 0;
  std::vector<std::byte> again(DeltaCapacity(count));
  WEFT_CHECK(EncodeDelta(numbers.data(), base.data(), count, again.data()) <= again.size(),
             "a delta exceeds its capacity");
  std::vector<std::byte> same = base;
  WEFT_CHECK(ApplyDelta(again.data(), count, same.data()) && same == numbers, "numbers are lost");
  return 0;
}

}  // namespace weft
