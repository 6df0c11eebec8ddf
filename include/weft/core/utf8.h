// Truncation of UTF-8 text.
#pragma once

#include <cstddef>
#include <string_view>

namespace weft {

// The longest start of `text` that has at most `bytes` bytes and does not end within a character. If `text`
// is not UTF-8, the start may be up to three bytes shorter than needed.
inline std::string_view TruncateUtf8(std::string_view text, size_t bytes) {
  constexpr size_t kContinuationBytes = 3;  // Of a character, at most.
  if (text.size() <= bytes) return text;
  size_t end = bytes;
  while (end > 0 && bytes - end < kContinuationBytes &&
         (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
    --end;
  return text.substr(0, end);
}

}  // namespace weft
