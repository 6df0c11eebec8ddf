// How the numbers of a slice are written that travels between nodes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/comm/codec/delta_codec.h"
#include "src/comm/codec/slice_codec.h"

namespace weft {

enum class WireEncoding : uint8_t {
  kPlain,
  kCompressed,  // Note [Compressed slices].
  kDelta,       // Of f32 that the receiver has an older state of: Note [Delta encoding].
};

// Most bytes that a slice of `count` numbers takes, of so many bytes each.
inline size_t SliceCapacity(WireEncoding form, size_t number_bytes, int64_t count) {
  switch (form) {
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
