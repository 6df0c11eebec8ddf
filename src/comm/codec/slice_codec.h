// Lossless compression of the slices of floating-point numbers that travel between nodes. Of a weight or a
// gradient sign and mantissa are noise, but the exponents of neighbours are alike: a block of numbers keeps
// them as a few bits above a common base, and lists the few that lie elsewhere. Every bit pattern comes back
// as it was, NaNs and infinities included.
//
// Note [Compressed slices]
// A compressed slice is its length in bytes (32 bits, itself included), then one block after the other of
// kPlaneBlock numbers, then what is left of the slice as it is. A block is
//   base, width, listed         a byte each
//   exponent - base             `width` bits of each number, in planes (bit_planes.h)
//   place, exponent             a byte each, of the `listed` numbers whose exponents lie outside
//   sign and upper mantissa     a byte each
//   lower mantissa              f32 only: two bytes each
// Base and width are those that take the fewest bytes. Numbers are little-endian.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/dtype.h"

namespace weft {

// Whether numbers of this dtype can be compressed: f32 and bf16.
constexpr bool IsCompressible(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// Most bytes that a slice of `count` numbers takes, of so many bytes each.
size_t CompressedCapacity(size_t number_bytes, int64_t count);
// Compresses `count` numbers; returns the bytes written.
size_t CompressSlice(DType dtype, const std::byte* numbers, int64_t count, std::byte* compressed);
// What CompressSlice, or EncodeDelta, returned for a slice.
size_t CompressedBytes(const std::byte* compressed);
// Writes back `count` numbers. False, with the numbers unspecified, if that is no slice of so many.
[[nodiscard]] bool DecompressSlice(DType dtype, const std::byte* compressed, int64_t count,
                                   std::byte* numbers);

}  // namespace weft
