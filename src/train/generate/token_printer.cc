#include "src/train/generate/token_printer.h"

#include <utility>

#include "weft/core/control_characters.h"

namespace weft {

void TokenPrinter::Print(int32_t token) {
  if (output_ == nullptr) return;
  if (as_ids_) {
    std::fprintf(output_, "%d\n", token);
  } else {
    std::string bytes = std::exchange(held_, {}) + static_cast<char>(token);
    if (bytes.back() == kLatinLeadByte) {
      bytes.pop_back();
      held_ = kLatinLeadByte;
    }
    std::fputs(EscapeForTerminal(bytes).c_str(), output_);
  }
  std::fflush(output_);
}

void TokenPrinter::Finish() {
  if (output_ == nullptr || as_ids_) return;
  std::fprintf(output_, "%s\n", std::exchange(held_, {}).c_str());
  std::fflush(output_);
}

}  // namespace weft
