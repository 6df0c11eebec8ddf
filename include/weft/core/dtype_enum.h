// Enumeration of element types. It includes no other header of weft, for code that does not link weft.
#pragma once

#include <cstdint>

namespace weft {

enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kI64, kF64, kI16, kI8, kU8 };

}  // namespace weft
