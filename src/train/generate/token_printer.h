// Printer of generated tokens: text of a model whose tokens are bytes, or ids.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace weft {

// Thread safety: none.
class TokenPrinter {
 public:
  // `output` may be null. `as_ids`: prints ids, one a line. Text is printed without control characters: see
  // EscapeForTerminal.
  TokenPrinter(std::FILE* output, bool as_ids) : output_(output), as_ids_(as_ids) {}

  // Prints the token at once, but for a byte that may begin a control character.
  void Print(int32_t token);
  // Ends the text.
  void Finish();

 private:
  std::FILE* output_;
  bool as_ids_;
  std::string held_;  // A first byte whose second one has not come.
};

}  // namespace weft
