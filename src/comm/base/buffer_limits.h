// Limits of the buffers that collectives and messages take, and their alignment. Pure.
#pragma once

#include <cstdint>
#include <string>

#include <absl/strings/str_cat.h>

#include "weft/core/dtype.h"
#include "weft/core/status.h"

namespace weft {

// More bytes than a node has. Their product with the number of ranks fits 64 bits.
inline constexpr int64_t kMaxBufferBytes = int64_t{1} << 45;
inline constexpr char kMaxBufferText[] = "a buffer has at most 32 TiB";

inline int64_t MaxElements(DType dtype) { return kMaxBufferBytes / static_cast<int64_t>(SizeOf(dtype)); }

// Kernels access elements as numbers of their type, whose address is a multiple of their size.
inline bool IsAligned(const void* data, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % SizeOf(dtype) == 0;
}
// The text of the error of a buffer that is not aligned, behind its name.
inline std::string MisalignedText(DType dtype) {
  return absl::StrCat(" does not begin at a multiple of ", SizeOf(dtype), " bytes, the size of ",
                      ToAbsl(Name(dtype)), "; copy it to aligned memory");
}

}  // namespace weft
