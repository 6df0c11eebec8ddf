// Delta encoding: lossless compression of slices of f32 against a base that the receiver holds.
//
// An optimizer update rarely changes a weight's sign, exponent or upper mantissa bits, so the difference of
// the bit patterns is small. Every bit pattern is restored exactly, for every base.
//
// Note [Delta encoding]
// An encoded slice consists of
//   length                     32 bits: bytes of the encoded slice, this field included
//   checksum of the base       32 bits
//   blocks                     one for each kPlaneBlock numbers
//   remainder                  the numbers after the last whole block, not encoded
// The delta of a number is `new - base` modulo 2^32, with the bit patterns as unsigned integers. The code of
// a delta is its zigzag code: the sign in the lowest bit, and above it the other bits, inverted if the delta
// is negative. A block stores `width` low bits of every code, and the codes that need more bits as exceptions
// (patched frame of reference, Zukowski et al., 2006):
//   width, exceptions, upper   one byte each
//   the low `width` bits       of each code, byte by byte from the lowest. Whole bytes take a byte each; the
//                              bits of the last, partial byte lie in bit planes (bit_planes.h)
//   index                      one byte for each exception: its position in the block
//   the upper bits             of each exception, in `upper` bytes
// The encoder searches locally for the width that takes the fewest bytes. Numbers are little-endian.
//
// Deltas applied to a wrong base give valid but wrong numbers. The checksum detects a wrong base. It covers
// the whole blocks; the remainder does not depend on the base.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// Largest size in bytes of an encoded slice of `count` numbers.
size_t DeltaCapacity(int64_t count);
// Encodes `count` numbers against `base` into `delta`. Returns the bytes written.
size_t EncodeDelta(const std::byte* now, const std::byte* base, int64_t count, std::byte* delta);
// Replaces the base in `numbers` by the numbers that were encoded. Returns false, and leaves `numbers`
// unspecified, if `delta` is not an encoded slice of `count` numbers, or was encoded against another base.
[[nodiscard]] bool ApplyDelta(const std::byte* delta, int64_t count, std::byte* numbers);

}  // namespace weft
