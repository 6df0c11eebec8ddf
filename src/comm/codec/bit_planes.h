// Bit planes: packing of blocks of byte-sized codes of which only the low bits are used.
//
// A block of codes of `width` bits is split into planes of 8, 4, 2 and 1 bits, those that add up to `width`.
// One byte of a plane of b bits holds b bits of each of 8 / b codes. These codes are kPlaneBlock * b / 8
// apart in the block, so that vector instructions can pack and unpack a plane.
//
// Pure.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft {

inline constexpr size_t kPlaneBlock = 256;
using CodeBlock = std::array<uint8_t, kPlaneBlock>;

// Size in bytes of a packed block of codes of `bits` bits.
constexpr size_t PlaneBytes(int bits) { return kPlaneBlock * static_cast<size_t>(bits) / 8; }

// Packs bits [from, from + kBits) of all codes. Returns the end of the output.
template <int kBits>
uint8_t* PackPlane(const CodeBlock& codes, int from, uint8_t* out) {
  constexpr int kCodesPerByte = 8 / kBits;
  constexpr size_t kBytes = PlaneBytes(kBits);
  constexpr unsigned kMask = (1U << kBits) - 1;
  for (size_t i = 0; i < kBytes; ++i) {
    unsigned byte = 0;
    for (int k = 0; k < kCodesPerByte; ++k) {
      byte |= ((static_cast<unsigned>(codes[static_cast<size_t>(k) * kBytes + i]) >> from) & kMask)
              << (k * kBits);
    }
    out[i] = static_cast<uint8_t>(byte);
  }
  return out + kBytes;
}

// ORs a plane into bits [to, to + kBits) of all codes. Returns the end of the input.
template <int kBits>
const uint8_t* UnpackPlane(const uint8_t* in, int to, CodeBlock& codes) {
  constexpr int kCodesPerByte = 8 / kBits;
  constexpr size_t kBytes = PlaneBytes(kBits);
  constexpr unsigned kMask = (1U << kBits) - 1;
  for (int k = 0; k < kCodesPerByte; ++k) {
    uint8_t* out = codes.data() + static_cast<size_t>(k) * kBytes;
    for (size_t i = 0; i < kBytes; ++i) {
      const unsigned bits = (static_cast<unsigned>(in[i]) >> (k * kBits)) & kMask;
      out[i] = static_cast<uint8_t>(out[i] | (bits << to));
    }
  }
  return in + kBytes;
}

// Calls plane.operator()<kBits>(shift) for each plane of codes of `width` bits, from the lowest bits up.
template <typename Plane>
void ForEachPlane(int width, const Plane& plane) {
  int shift = 0;
  const auto next = [&]<int kBits>() {
    if ((width & kBits) == 0) return;
    plane.template operator()<kBits>(shift);
    shift += kBits;
  };
  next.template operator()<8>();
  next.template operator()<4>();
  next.template operator()<2>();
  next.template operator()<1>();
}

// Packs the low `width` bits of all codes. Returns the end of the output.
inline uint8_t* PackCodes(const CodeBlock& codes, int width, uint8_t* out) {
  ForEachPlane(width, [&]<int kBits>(int from) { out = PackPlane<kBits>(codes, from, out); });
  return out;
}

// Unpacks the low `width` bits of all codes. Returns the end of the input. REQUIRES: all codes are zero.
inline const uint8_t* UnpackCodes(const uint8_t* in, int width, CodeBlock& codes) {
  ForEachPlane(width, [&]<int kBits>(int to) { in = UnpackPlane<kBits>(in, to, codes); });
  return in;
}

// Calls visit(index) for the index of each mark that is not zero, in order. REQUIRES: marks are 0 or 0xFF.
template <typename Visit>
void ForEachMarked(const CodeBlock& marks, const Visit& visit) {
  constexpr size_t kGroup = sizeof(uint64_t);
  for (size_t first = 0; first < kPlaneBlock; first += kGroup) {
    uint64_t group = 0;
    std::memcpy(&group, marks.data() + first, kGroup);
    while (group != 0) {
      const auto in_group = static_cast<size_t>(std::countr_zero(group)) / 8;
      visit(first + in_group);
      group &= ~(uint64_t{0xFF} << (8 * in_group));
    }
  }
}

}  // namespace weft
