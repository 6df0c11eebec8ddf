// Encodings of slices that travel between nodes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/comm/codec/delta_codec.h"
#include "src/comm/codec/slice_codec.h"

namespace weft {

enum class WireEncoding : uint8_t {
  kPlain,       // The numbers as they are in memory.
  kCompressed,  // Lossless compression of f32 and bf16. See Note [Compressed slices].
  kDelta,       // Delta encoding of f32 against a base that the receiver holds. See Note [Delta encoding].
};

// Largest size in bytes of an encoded slice of `count` numbers of `number_bytes` bytes each.
inline size_t SliceCapacity(WireEncoding encoding, size_t number_bytes, int64_t count) {
  switch (encoding) {
    case WireEncoding::kPlain:
      break;
    case WireEncoding::kCompressed:
      return CompressedCapacity(number_bytes, count);
    case WireEncoding::kDelta:
      return DeltaCapacity(count);
  }
  return static_cast<size_t>(count) * number_bytes;
}

}  // namespace weft
