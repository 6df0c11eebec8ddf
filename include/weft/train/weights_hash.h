// Hash of all weights of a model, to compare runs bit by bit. Shards of any shape can be hashed separately.
//
// H is Hash64 of weft/core/hash.h: the 64-bit XXH3 hash of the xxHash library. A parameter's digest is the
// sum modulo 2^64, over its elements, of H of 12 bytes: the element's index as a 64-bit and its fp32 bits as
// a 32-bit little-endian integer. Digests of parts may be added in any order. The model's hash is H of the
// concatenation, over all parameters in the order of names, of "name\0" and the 8 bytes of the digest.
//
// Pure. Thread safety: free functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <absl/types/span.h>

namespace weft {

// The contribution of elements [first, first + values.size()) to their parameter's digest.
uint64_t DigestOfElements(int64_t first, absl::Span<const float> values);

// The model's hash from the digests of its parameters, by name.
uint64_t WeightsHash(const std::map<std::string, uint64_t>& digests);

}  // namespace weft
