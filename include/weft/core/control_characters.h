// Escapes for control characters in untrusted text, such as file names and generated text.
//
// Escape sequences in it would act on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <absl/strings/str_cat.h>

namespace weft {

inline bool IsControlCharacter(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// "\x1b".
inline std::string HexEscape(char c) {
  return absl::StrCat("\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
}

// First byte of U+0080 to U+00BF in UTF-8. The control characters among them, to U+009F, have their number as
// second byte.
inline constexpr char kLatinLeadByte = '\xC2';

// UTF-8 text with control characters as hex escapes of their numbers, but for line feeds and tabs.
inline std::string EscapeForTerminal(std::string_view text) {
  std::string printable;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == kLatinLeadByte && (next & '\xE0') == '\x80') {
      printable += HexEscape(next);
      ++i;
    } else if (IsControlCharacter(c) && c != '\n' && c != '\t') {
      printable += HexEscape(c);
    } else {
      printable += c;
    }
  }
  return printable;
}

}  // namespace weft
