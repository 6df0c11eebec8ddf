#include "src/comm/codec/delta_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "src/comm/codec/bit_planes.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "changes are little-endian");

// A block of numbers, or of their codes.
using Words = std::array<uint32_t, kPlaneBlock>;

constexpr auto kBlock = static_cast<int64_t>(kPlaneBlock);
constexpr size_t kBlockBytes = sizeof(Words);
// Length and checksum.
constexpr size_t kSliceHeaderBytes = 2 * sizeof(uint32_t);
constexpr size_t kHeaderBytes = 3;
constexpr int kWordBits = 32;
// That `listed`, a byte, can say.
constexpr int kMostListed = 255;

Words Load(const std::byte* block) {
  Words words;
  std::memcpy(words.data(), block, kBlockBytes);
  return words;
}

constexpr uint32_t ToCode(uint32_t change) { return (change << 1) ^ (0U - (change >> 31)); }
constexpr uint32_t ToChange(uint32_t code) { return (code >> 1) ^ (0U - (code & 1U)); }

// Adds a block of an older state. Words are mixed with their places before they are added up, so that like
// changes of many, as by a factor or of the sign, do not cancel.
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

// How a block's codes are cut in two.
struct Cut {
  int width = 0;
  int listed = 0;  // Codes that have more bits,
  int upper = 0;   // and the bytes that hold these.

  size_t bytes() const {
    return PlaneBytes(width) + static_cast<size_t>(listed) * (1 + static_cast<size_t>(upper));
  }
};

// At a width; `most_bits`: of any code.
Cut CutAt(const Words& codes, int width, int most_bits) {
  if (width >= most_bits) return {width, 0, 0};
  const uint32_t largest = (1U << width) - 1;
  int listed = 0;
  for (const uint32_t code : codes) listed += code > largest ? 1 : 0;
  return {width, listed, (most_bits - width + 7) / 8};
}

// Neighbouring blocks have like changes: starts at the width of the one before, and goes down or up as long
// as that saves bytes.
Cut BestCut(const Words& codes, int start) {
  uint32_t any = 0;
  for (const uint32_t code : codes) any |= code;
  const int most_bits = std::bit_width(any);
  Cut best = CutAt(codes, std::min(start, most_bits), most_bits);
  for (const int step : {-1, 1}) {
    const int first = best.width;
    for (int width = first + step; width >= 0 && width <= most_bits; width += step) {
      const Cut cut = CutAt(codes, width, most_bits);
      if (cut.bytes() >= best.bytes()) break;
      best = cut;
    }
    if (best.width != first) break;
  }
  const Cut whole{most_bits, 0, 0};
  return best.listed <= kMostListed && best.bytes() < whole.bytes() ? best : whole;
}

// Calls plane(shift, bits) for each byte of codes of `width` bits, from the lowest.
template <typename Plane>
void ForEachByte(int width, const Plane& plane) {
  for (int shift = 0; shift < width; shift += 8) plane(shift, std::min(8, width - shift));
}

uint8_t* ListUpper(const Words& codes, const Cut& cut, uint8_t* out) {
  const uint32_t largest = (1U << cut.width) - 1;
  CodeBlock marks;
  for (size_t i = 0; i < kPlaneBlock; ++i) marks[i] = codes[i] > largest ? 0xFF : 0;
  uint8_t* upper = out + cut.listed;
  ForEachMarked(marks, [&](size_t place) {
    *out++ = static_cast<uint8_t>(place);
    const uint32_t bits = codes[place] >> cut.width;
    std::memcpy(upper, &bits, static_cast<size_t>(cut.upper));
    upper += cut.upper;
  });
  return upper;
}

uint8_t* CompressBlock(const Words& now, const Words& before, int& width, uint8_t* out) {
  Words codes;
  for (size_t i = 0; i < kPlaneBlock; ++i) codes[i] = ToCode(now[i] - before[i]);
  const Cut cut = BestCut(codes, width);
  width = cut.width;
  *out++ = static_cast<uint8_t>(cut.width);
  *out++ = static_cast<uint8_t>(cut.listed);
  *out++ = static_cast<uint8_t>(cut.upper);
  ForEachByte(cut.width, [&](int shift, int bits) {
    CodeBlock byte;
    for (size_t i = 0; i < kPlaneBlock; ++i) byte[i] = static_cast<uint8_t>(codes[i] >> shift);
    out = PackCodes(byte, bits, out);
  });
  return cut.listed == 0 ? out : ListUpper(codes, cut, out);
}

// Where the block ends; null if it does not before `end`, or is none.
const uint8_t* ApplyBlock(const uint8_t* in, const uint8_t* end, Words& numbers) {
  if (static_cast<size_t>(end - in) < kHeaderBytes) return nullptr;
  const Cut cut{in[0], in[1], in[2]};
  in += kHeaderBytes;
  if (cut.width > kWordBits || cut.upper > static_cast<int>(sizeof(uint32_t))) return nullptr;
  if (cut.listed > 0 && cut.width == kWordBits) return nullptr;
  if (static_cast<size_t>(end - in) < cut.bytes()) return nullptr;
  Words codes{};
  ForEachByte(cut.width, [&](int shift, int bits) {
    CodeBlock byte{};
    in = UnpackCodes(in, bits, byte);
    for (size_t i = 0; i < kPlaneBlock; ++i) codes[i] |= static_cast<uint32_t>(byte[i]) << shift;
  });
  const uint8_t* upper = in + cut.listed;
  for (int i = 0; i < cut.listed; ++i, upper += cut.upper) {
    uint32_t bits = 0;
    std::memcpy(&bits, upper, static_cast<size_t>(cut.upper));
    codes[in[i]] |= bits << cut.width;
  }
  for (size_t i = 0; i < kPlaneBlock; ++i) numbers[i] += ToChange(codes[i]);
  return upper;
}

}  // namespace

size_t DeltaCapacity(int64_t count) {
  return kSliceHeaderBytes + static_cast<size_t>(count) * sizeof(float) +
         static_cast<size_t>(count / kBlock) * kHeaderBytes;
}

size_t EncodeDelta(const std::byte* now, const std::byte* before, int64_t count, std::byte* changes) {
  auto* begin = reinterpret_cast<uint8_t*>(changes);
  uint8_t* out = begin + kSliceHeaderBytes;
  uint32_t checksum = 0;
  int width = kWordBits / 2;
  for (; count >= kBlock; count -= kBlock, now += kBlockBytes, before += kBlockBytes) {
    const Words older = Load(before);
    checksum = AddToChecksum(checksum, older);
    out = CompressBlock(Load(now), older, width, out);
  }
  const size_t rest = static_cast<size_t>(count) * sizeof(uint32_t);
  if (rest > 0) std::memcpy(out, now, rest);
  const std::array<uint32_t, 2> header = {static_cast<uint32_t>(out + rest - begin), checksum};
  std::memcpy(begin, header.data(), sizeof(header));
  return header[0];
}

bool ApplyDelta(const std::byte* changes, int64_t count, std::byte* numbers) {
  const auto* in = reinterpret_cast<const uint8_t*>(changes);
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
  const size_t rest = static_cast<size_t>(count) * sizeof(uint32_t);
  if (end - in != static_cast<std::ptrdiff_t>(rest) || checksum != header[1]) return false;
  if (rest > 0) std::memcpy(numbers, in, rest);
  return true;
}

}  // namespace weft
