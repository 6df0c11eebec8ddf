// Escapes for control characters in untrusted text, such as file names and generated text.
//
// Escape sequences in it would act on a terminal.
#pragma once

#include <string>
#include <string_view>

#include <absl/strings/str_cat.h>

namespace weft {

inline bool IsControlCharacter(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// "\x1b".
inline std::string HexEscape(char c) {
  return absl::StrCat("\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
}

// The text with control characters as hex escapes, but for line feeds and tabs.
inline std::string EscapeForTerminal(std::string_view text) {
  std::string printable;
  for (const char c : text) {
    if (IsControlCharacter(c) && c != '\n' && c != '\t') {
      printable += HexEscape(c);
    } else {
      printable += c;
    }
  }
  return printable;
}

}  // namespace weft
