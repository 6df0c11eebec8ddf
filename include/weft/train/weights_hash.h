// One number for all weights of a model, to compare runs bit by bit. It can be made from shards, cut
// anywhere.
//
// A parameter's digest is the sum modulo 2^64, over its elements, of xxh64 of the 12 bytes (element index as
// a 64-bit, fp32 bits as a 32-bit little-endian integer). Sums of parts may be added in any order. The
// model's hash is the xxh64 of "name\0" and the digest's 8 bytes for every parameter, in order of names.
//
// Pure. Thread safety: none needed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <absl/types/span.h>

namespace weft {

// The part of a parameter's digest that elements [first, first + values.size()) make.
uint64_t DigestOfElements(int64_t first, absl::Span<const float> values);

// From the digest of each parameter, by name.
uint64_t WeightsHash(const std::map<std::string, uint64_t>& digests);

}  // namespace weft
