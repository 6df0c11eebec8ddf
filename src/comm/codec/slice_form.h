// How the numbers of a slice are written that travels between nodes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/comm/codec/change_codec.h"
#include "src/comm/codec/slice_codec.h"

namespace weft {

enum class SliceForm : uint8_t {
  kPlain,
  kCompressed,  // Note [Compressed slices].
  kChanges,     // Of f32 that the receiver has an older state of: Note [Changes].
};

// Most bytes that a slice of `count` numbers takes, of so many bytes each.
inline size_t SliceCapacity(SliceForm form, size_t number_bytes, int64_t count) {
  switch (form) {
    case SliceForm::kPlain:
      break;
    case SliceForm::kCompressed:
      return CompressedCapacity(number_bytes, count);
    case SliceForm::kChanges:
      return ChangesCapacity(count);
  }
  return static_cast<size_t>(count) * number_bytes;
}

}  // namespace weft
