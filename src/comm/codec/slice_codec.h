// Lossless compression of slices of floating-point numbers that travel between nodes.
//
// The signs and mantissas of weights and gradients are noise, but neighboring numbers have similar
// exponents. A block of numbers stores each exponent in a few bits above a common base, and lists the few
// exponents outside that range as exceptions. Every bit pattern is restored exactly, NaNs and infinities
// included.
//
// Note [Compressed slices]
// A compressed slice consists of
//   length                      32 bits: bytes of the compressed slice, this field included
//   blocks                      one for each kPlaneBlock numbers
//   remainder                   the numbers after the last whole block, not compressed
// A block consists of
//   base, width, exceptions     one byte each
//   exponent - base             `width` bits for each number, in bit planes (bit_planes.h)
//   index, exponent             one byte each for each exception: its position in the block, and its exponent
//   sign and upper mantissa     one byte for each number
//   lower mantissa              f32 only: two bytes for each number
// The encoder chooses the base and the width that take the fewest bytes. Numbers are little-endian.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/dtype.h"

namespace weft {

// True for dtypes that can be compressed: f32 and bf16.
constexpr bool IsCompressible(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// Largest size in bytes of a compressed slice of `count` numbers of `number_bytes` bytes each.
size_t CompressedCapacity(size_t number_bytes, int64_t count);
// Compresses `count` numbers. Returns the bytes written. REQUIRES: IsCompressible(dtype).
size_t CompressSlice(DType dtype, const std::byte* numbers, int64_t count, std::byte* compressed);
// Size in bytes of a slice that CompressSlice or EncodeDelta wrote.
size_t CompressedBytes(const std::byte* compressed);
// Decompresses `count` numbers. Returns false, and leaves `numbers` unspecified, if `compressed` is not a
// compressed slice of `count` numbers. REQUIRES: IsCompressible(dtype).
[[nodiscard]] bool DecompressSlice(DType dtype, const std::byte* compressed, int64_t count,
                                   std::byte* numbers);

}  // namespace weft
