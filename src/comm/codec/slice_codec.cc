#include "src/comm/codec/slice_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "src/comm/codec/bit_planes.h"
#include "weft/core/status.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "compressed slices are little-endian");

constexpr size_t kBlock = kPlaneBlock;
constexpr auto kBlockCount = static_cast<int64_t>(kBlock);

// Length of a slice.
constexpr size_t kLengthBytes = sizeof(uint32_t);
// Base, width and exceptions of a block.
constexpr size_t kHeaderBytes = 3;
// Index and exponent of an exception.
constexpr size_t kExceptionBytes = 2;
// A window of `width` bits contains 2^width successive exponents. BestWindow tries all widths up to
// kMaxWidth. The largest exponent of a window is that of the block, or at most kUpperEnds - 1 below it. The
// alternative to a window is to store whole exponents, of kExponentBits each.
constexpr size_t kUpperEnds = 3;
constexpr int kMaxWidth = 4;
constexpr int kExponentBits = 8;
// Number of distances from the largest exponent that a window can contain.
constexpr size_t kDistances = kUpperEnds + (size_t{1} << kMaxWidth);

// Bytes of the mantissa below its upper seven bits.
template <typename Word>
constexpr size_t kLowBytes = sizeof(Word) - sizeof(uint16_t);

// The range of exponents that a block stores as `width` bits above `base`. Differences are modulo 256.
struct Window {
  uint8_t base = 0;
  int width = kExponentBits;
  int exceptions = 0;  // Exponents outside the window.
};

// Returns the window that takes the fewest bytes.
Window BestWindow(const CodeBlock& exponents) {
  uint8_t largest = 0;
  for (const uint8_t exponent : exponents) largest = std::max(largest, exponent);
  CodeBlock distances;
  for (size_t i = 0; i < kBlock; ++i) {
    distances[i] = static_cast<uint8_t>(std::min(largest - exponents[i], static_cast<int>(kDistances)));
  }
  // Neighboring exponents are often equal. With several tables, their increments do not depend on each
  // other.
  constexpr size_t kTables = 4;
  std::array<std::array<uint16_t, kDistances + 1>, kTables> counts{};
  for (size_t i = 0; i < kBlock; i += kTables) {
    for (size_t table = 0; table < kTables; ++table) ++counts[table][distances[i + table]];
  }
  std::array<int, kDistances + 1> closer{};  // closer[d]: exponents at a distance below d from the largest.
  for (size_t distance = 0; distance < kDistances; ++distance) {
    closer[distance + 1] = closer[distance];
    for (const auto& table : counts) closer[distance + 1] += table[distance];
  }
  Window best;
  size_t least_bytes = PlaneBytes(best.width);
  for (int width = 0; width <= kMaxWidth; ++width) {
    const size_t size = size_t{1} << width;
    for (size_t end = 0; end < kUpperEnds; ++end) {
      const int inside = closer[end + size] - closer[end];
      const int exceptions = static_cast<int>(kBlock) - inside;
      const size_t bytes = PlaneBytes(width) + kExceptionBytes * static_cast<size_t>(exceptions);
      if (bytes >= least_bytes) continue;
      least_bytes = bytes;
      best = {static_cast<uint8_t>(largest - end - size + 1), width, exceptions};
    }
  }
  return best;
}

// Writes the indices and exponents of the codes outside the window. Returns the end of the output.
uint8_t* WriteExceptions(const CodeBlock& codes, const Window& window, uint8_t* out) {
  CodeBlock outside;
  const int size = 1 << window.width;
  for (size_t i = 0; i < kBlock; ++i) outside[i] = codes[i] >= size ? 0xFF : 0;
  ForEachMarked(outside, [&](size_t index) {
    *out++ = static_cast<uint8_t>(index);
    *out++ = static_cast<uint8_t>(codes[index] + window.base);
  });
  return out;
}

// The bits of a number. Copies them: to access a float as an integer is undefined behavior.
template <typename Word>
Word LoadWord(const std::byte* numbers, size_t index) {
  Word word;
  std::memcpy(&word, numbers + index * sizeof(Word), sizeof(Word));
  return word;
}
template <typename Word>
void StoreWord(Word word, std::byte* numbers, size_t index) {
  std::memcpy(numbers + index * sizeof(Word), &word, sizeof(Word));
}

template <typename Word>
uint8_t* CompressBlock(const std::byte* numbers, uint8_t* out) {
  constexpr int kLowBits = 8 * kLowBytes<Word>;
  CodeBlock codes;
  for (size_t i = 0; i < kBlock; ++i)
    codes[i] = static_cast<uint8_t>(LoadWord<Word>(numbers, i) >> (kLowBits + 7));
  const Window window = BestWindow(codes);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(code - window.base);
  *out++ = window.base;
  *out++ = static_cast<uint8_t>(window.width);
  *out++ = static_cast<uint8_t>(window.exceptions);
  out = PackCodes(codes, window.width, out);
  if (window.exceptions > 0) out = WriteExceptions(codes, window, out);
  for (size_t i = 0; i < kBlock; ++i) {
    const auto upper = static_cast<unsigned>(LoadWord<Word>(numbers, i) >> kLowBits);
    out[i] = static_cast<uint8_t>(((upper >> 8) & 0x80U) | (upper & 0x7FU));
  }
  out += kBlock;
  if constexpr (kLowBits > 0) {
    std::array<uint16_t, kBlock> low;
    for (size_t i = 0; i < kBlock; ++i) low[i] = static_cast<uint16_t>(LoadWord<Word>(numbers, i));
    std::memcpy(out, low.data(), sizeof(low));
    out += sizeof(low);
  }
  return out;
}

// Decompresses one block. Returns the end of the block, or null if it is malformed or goes beyond `end`.
template <typename Word>
const uint8_t* DecompressBlock(const uint8_t* in, const uint8_t* end, std::byte* numbers) {
  constexpr int kLowBits = 8 * kLowBytes<Word>;
  if (static_cast<size_t>(end - in) < kHeaderBytes) return nullptr;
  const Window window{in[0], in[1], in[2]};
  in += kHeaderBytes;
  if (window.width > kExponentBits) return nullptr;
  const size_t exception_bytes = kExceptionBytes * static_cast<size_t>(window.exceptions);
  const size_t bytes = PlaneBytes(window.width) + exception_bytes + kBlock * (1 + kLowBytes<Word>);
  if (static_cast<size_t>(end - in) < bytes) return nullptr;
  CodeBlock exponents{};
  in = UnpackCodes(in, window.width, exponents);
  for (uint8_t& exponent : exponents) exponent = static_cast<uint8_t>(exponent + window.base);
  for (const uint8_t* exceptions_end = in + exception_bytes; in != exceptions_end; in += kExceptionBytes)
    exponents[in[0]] = in[1];
  const uint8_t* upper = in;
  in += kBlock;
  std::array<uint16_t, kBlock> low{};
  if constexpr (kLowBits > 0) {
    std::memcpy(low.data(), in, sizeof(low));
    in += sizeof(low);
  }
  for (size_t i = 0; i < kBlock; ++i) {
    const unsigned high =
        ((upper[i] & 0x80U) << 8) | (static_cast<unsigned>(exponents[i]) << 7) | (upper[i] & 0x7FU);
    StoreWord(static_cast<Word>((high << kLowBits) | low[i]), numbers, i);
  }
  return in;
}

template <typename Word>
size_t Compress(const std::byte* numbers, int64_t count, std::byte* compressed) {
  auto* begin = reinterpret_cast<uint8_t*>(compressed);
  uint8_t* out = begin + kLengthBytes;
  for (; count >= kBlockCount; count -= kBlockCount, numbers += kBlock * sizeof(Word))
    out = CompressBlock<Word>(numbers, out);
  const size_t remainder_bytes = static_cast<size_t>(count) * sizeof(Word);
  if (remainder_bytes > 0) std::memcpy(out, numbers, remainder_bytes);
  const auto bytes = static_cast<uint32_t>(out + remainder_bytes - begin);
  std::memcpy(begin, &bytes, sizeof(bytes));
  return bytes;
}

template <typename Word>
bool Decompress(const std::byte* compressed, int64_t count, std::byte* numbers) {
  const auto* in = reinterpret_cast<const uint8_t*>(compressed);
  const size_t bytes = CompressedBytes(compressed);
  if (bytes < kLengthBytes || bytes > CompressedCapacity(sizeof(Word), count)) return false;
  const uint8_t* end = in + bytes;
  for (in += kLengthBytes; count >= kBlockCount; count -= kBlockCount, numbers += kBlock * sizeof(Word)) {
    in = DecompressBlock<Word>(in, end, numbers);
    if (in == nullptr) return false;
  }
  const size_t remainder_bytes = static_cast<size_t>(count) * sizeof(Word);
  if (end - in != static_cast<std::ptrdiff_t>(remainder_bytes)) return false;
  if (remainder_bytes > 0) std::memcpy(numbers, in, remainder_bytes);
  return true;
}

// Calls compute.operator()<Word>() with the unsigned integer type that has the size of the dtype.
template <typename Compute>
auto WithWord(DType dtype, const Compute& compute) {
  WEFT_CHECK(IsCompressible(dtype), "slices of this dtype cannot be compressed: check IsCompressible first");
  return dtype == DType::kF32 ? compute.template operator()<uint32_t>()
                              : compute.template operator()<uint16_t>();
}

}  // namespace

size_t CompressedCapacity(size_t number_bytes, int64_t count) {
  return kLengthBytes + static_cast<size_t>(count) * number_bytes +
         static_cast<size_t>(count / kBlockCount) * kHeaderBytes;
}

size_t CompressedBytes(const std::byte* compressed) {
  uint32_t bytes = 0;
  std::memcpy(&bytes, compressed, sizeof(bytes));
  return bytes;
}

size_t CompressSlice(DType dtype, const std::byte* numbers, int64_t count, std::byte* compressed) {
  return WithWord(dtype, [&]<typename Word>() { return Compress<Word>(numbers, count, compressed); });
}

bool DecompressSlice(DType dtype, const std::byte* compressed, int64_t count, std::byte* numbers) {
  return WithWord(dtype, [&]<typename Word>() { return Decompress<Word>(compressed, count, numbers); });
}

}  // namespace weft
