// Lossless compression of slices of f32 that travel between nodes to where an older state of them is: an
// update leaves of a number its sign, its exponent and the upper part of its mantissa, mostly. Every bit
// pattern comes back as it is, whatever the older state was.
//
// Note [Delta encoding]
// A slice of changes is its length in bytes (32 bits, itself included), a checksum of the older state (32
// bits), then one block after the other of kPlaneBlock numbers, then what is left of the slice as it is. With
// numbers as unsigned integers, their change is new - old modulo 2^32, and its code has the sign in the
// lowest bit and above it the other bits, inverted if it is negative. A block is
//   width, listed, upper       a byte each
//   the lower `width` bits     of each code, byte by byte from the lowest: whole bytes are a byte each, the
//                              last bits lie in planes (bit_planes.h)
//   place                      a byte each, of the `listed` codes that have more bits
//   the other bits             of each of these, in `upper` bytes
// The width is near the one that takes the fewest bytes. Numbers are little-endian.
//
// The checksum is there because nobody else would notice: changes of another state are numbers, too. It is of
// whole blocks; what is left of the slice does not depend on the older state.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// Most bytes that a slice of changes of `count` numbers takes.
size_t DeltaCapacity(int64_t count);
// Writes what `count` numbers are now, as changes of what they were; returns the bytes written.
size_t EncodeDelta(const std::byte* now, const std::byte* before, int64_t count, std::byte* changes);
// Makes of `count` numbers what they are now. False, with the numbers unspecified, if that is no slice of
// changes of these.
[[nodiscard]] bool ApplyDelta(const std::byte* changes, int64_t count, std::byte* numbers);

}  // namespace weft
