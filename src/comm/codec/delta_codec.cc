#include "src/comm/codec/delta_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "src/comm/codec/bit_planes.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "encoded slices are little-endian");

// A block of bit patterns, or of their codes.
using Words = std::array<uint32_t, kPlaneBlock>;

constexpr auto kBlock = static_cast<int64_t>(kPlaneBlock);
constexpr size_t kBlockBytes = sizeof(Words);
// Length and checksum of a slice.
constexpr size_t kSliceHeaderBytes = 2 * sizeof(uint32_t);
// Width, exceptions and upper bytes of a block.
constexpr size_t kHeaderBytes = 3;
constexpr int kWordBits = 32;
// The number of exceptions of a block is stored in one byte.
constexpr int kMaxExceptions = 255;

Words Load(const std::byte* block) {
  Words words;
  std::memcpy(words.data(), block, kBlockBytes);
  return words;
}

constexpr uint32_t ZigzagEncode(uint32_t delta) { return (delta << 1) ^ (0U - (delta >> 31)); }
constexpr uint32_t ZigzagDecode(uint32_t code) { return (code >> 1) ^ (0U - (code & 1U)); }

// Adds a block of the base to its checksum. Each word is mixed with its index before it is summed. Otherwise
// equal errors in many words, such as a common factor or a flipped sign, could cancel.
uint32_t AddToChecksum(uint32_t checksum, const Words& block) {
  constexpr uint32_t kGolden = 0x9E3779B1U;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kPlaneBlock; ++i) {
    uint32_t word = block[i] + i * kGolden;
    word = (word ^ (word >> 16)) * 0x85EBCA6BU;
    sum += word ^ (word >> 13);
  }
  return checksum * kGolden + sum;
}

// How the codes of a block are stored: as low bits and exceptions.
struct BlockLayout {
  int width = 0;       // Low bits that are stored of every code.
  int exceptions = 0;  // Codes that have more than `width` bits.
  int upper = 0;       // Bytes that hold the upper bits of an exception.

  size_t bytes() const {
    return PlaneBytes(width) + static_cast<size_t>(exceptions) * (1 + static_cast<size_t>(upper));
  }
};

// The layout with a given width. The longest code of the block has `max_bits` bits.
BlockLayout LayoutAt(const Words& codes, int width, int max_bits) {
  if (width >= max_bits) return {width, 0, 0};
  const uint32_t largest = (1U << width) - 1;
  int exceptions = 0;
  for (const uint32_t code : codes) exceptions += code > largest ? 1 : 0;
  return {width, exceptions, (max_bits - width + 7) / 8};
}

// Searches for the smallest layout. Deltas of neighboring blocks have similar sizes, so the search starts at
// the width of the previous block, and goes down or up while the layout gets smaller.
BlockLayout BestLayout(const Words& codes, int start) {
  uint32_t any = 0;
  for (const uint32_t code : codes) any |= code;
  const int max_bits = std::bit_width(any);
  BlockLayout best = LayoutAt(codes, std::min(start, max_bits), max_bits);
  for (const int step : {-1, 1}) {
    const int first = best.width;
    for (int width = first + step; width >= 0 && width <= max_bits; width += step) {
      const BlockLayout layout = LayoutAt(codes, width, max_bits);
      if (layout.bytes() >= best.bytes()) break;
      best = layout;
    }
    if (best.width != first) break;
  }
  const BlockLayout without_exceptions{max_bits, 0, 0};
  return best.exceptions <= kMaxExceptions && best.bytes() < without_exceptions.bytes() ? best
                                                                                        : without_exceptions;
}

// Calls plane(shift, bits) for each byte of codes of `width` bits, from the lowest.
template <typename Plane>
void ForEachByte(int width, const Plane& plane) {
  for (int shift = 0; shift < width; shift += 8) plane(shift, std::min(8, width - shift));
}

// Writes the indices and the upper bits of the exceptions. Returns the end of the output.
uint8_t* WriteExceptions(const Words& codes, const BlockLayout& layout, uint8_t* out) {
  const uint32_t largest = (1U << layout.width) - 1;
  CodeBlock marks;
  for (size_t i = 0; i < kPlaneBlock; ++i) marks[i] = codes[i] > largest ? 0xFF : 0;
  uint8_t* upper = out + layout.exceptions;
  ForEachMarked(marks, [&](size_t index) {
    *out++ = static_cast<uint8_t>(index);
    const uint32_t bits = codes[index] >> layout.width;
    std::memcpy(upper, &bits, static_cast<size_t>(layout.upper));
    upper += layout.upper;
  });
  return upper;
}

// Encodes one block. `width` is that of the previous block on entry, and that of this block on return.
uint8_t* EncodeBlock(const Words& now, const Words& base, int& width, uint8_t* out) {
  Words codes;
  for (size_t i = 0; i < kPlaneBlock; ++i) codes[i] = ZigzagEncode(now[i] - base[i]);
  const BlockLayout layout = BestLayout(codes, width);
  width = layout.width;
  *out++ = static_cast<uint8_t>(layout.width);
  *out++ = static_cast<uint8_t>(layout.exceptions);
  *out++ = static_cast<uint8_t>(layout.upper);
  ForEachByte(layout.width, [&](int shift, int bits) {
    CodeBlock byte;
    for (size_t i = 0; i < kPlaneBlock; ++i) byte[i] = static_cast<uint8_t>(codes[i] >> shift);
    out = PackCodes(byte, bits, out);
  });
  return layout.exceptions == 0 ? out : WriteExceptions(codes, layout, out);
}

// Adds one block of deltas to `numbers`. Returns the end of the block, or null if it is malformed or goes
// beyond `end`.
const uint8_t* ApplyBlock(const uint8_t* in, const uint8_t* end, Words& numbers) {
  if (static_cast<size_t>(end - in) < kHeaderBytes) return nullptr;
  const BlockLayout layout{in[0], in[1], in[2]};
  in += kHeaderBytes;
  if (layout.width > kWordBits || layout.upper > static_cast<int>(sizeof(uint32_t))) return nullptr;
  if (layout.exceptions > 0 && layout.width == kWordBits) return nullptr;
  if (static_cast<size_t>(end - in) < layout.bytes()) return nullptr;
  Words codes{};
  ForEachByte(layout.width, [&](int shift, int bits) {
    CodeBlock byte{};
    in = UnpackCodes(in, bits, byte);
    for (size_t i = 0; i < kPlaneBlock; ++i) codes[i] |= static_cast<uint32_t>(byte[i]) << shift;
  });
  const uint8_t* upper = in + layout.exceptions;
  for (int i = 0; i < layout.exceptions; ++i, upper += layout.upper) {
    uint32_t bits = 0;
    std::memcpy(&bits, upper, static_cast<size_t>(layout.upper));
    codes[in[i]] |= bits << layout.width;
  }
  for (size_t i = 0; i < kPlaneBlock; ++i) numbers[i] += ZigzagDecode(codes[i]);
  return upper;
}

}  // namespace

size_t DeltaCapacity(int64_t count) {
  return kSliceHeaderBytes + static_cast<size_t>(count) * sizeof(float) +
         static_cast<size_t>(count / kBlock) * kHeaderBytes;
}

size_t EncodeDelta(const std::byte* now, const std::byte* base, int64_t count, std::byte* delta) {
  auto* begin = reinterpret_cast<uint8_t*>(delta);
  uint8_t* out = begin + kSliceHeaderBytes;
  uint32_t checksum = 0;
  int width = kWordBits / 2;
  for (; count >= kBlock; count -= kBlock, now += kBlockBytes, base += kBlockBytes) {
    const Words base_block = Load(base);
    checksum = AddToChecksum(checksum, base_block);
    out = EncodeBlock(Load(now), base_block, width, out);
  }
  const size_t remainder_bytes = static_cast<size_t>(count) * sizeof(uint32_t);
  if (remainder_bytes > 0) std::memcpy(out, now, remainder_bytes);
  const std::array<uint32_t, 2> header = {static_cast<uint32_t>(out + remainder_bytes - begin), checksum};
  std::memcpy(begin, header.data(), sizeof(header));
  return header[0];
}

bool ApplyDelta(const std::byte* delta, int64_t count, std::byte* numbers) {
  const auto* in = reinterpret_cast<const uint8_t*>(delta);
  std::array<uint32_t, 2> header;
  std::memcpy(header.data(), in, sizeof(header));
  if (header[0] < kSliceHeaderBytes || header[0] > DeltaCapacity(count)) return false;
  const uint8_t* end = in + header[0];
  uint32_t checksum = 0;
  for (in += kSliceHeaderBytes; count >= kBlock; count -= kBlock, numbers += kBlockBytes) {
    Words block = Load(numbers);
    checksum = AddToChecksum(checksum, block);
    in = ApplyBlock(in, end, block);
    if (in == nullptr) return false;
    std::memcpy(numbers, block.data(), kBlockBytes);
  }
  const size_t remainder_bytes = static_cast<size_t>(count) * sizeof(uint32_t);
  if (end - in != static_cast<std::ptrdiff_t>(remainder_bytes) || checksum != header[1]) return false;
  if (remainder_bytes > 0) std::memcpy(numbers, in, remainder_bytes);
  return true;
}

}  // namespace weft
