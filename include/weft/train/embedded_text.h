// The text that a run without --data trains on: the project's own licence and documentation, taken at build
// time.
#pragma once

#include <string_view>

namespace weft {

std::string_view EmbeddedText();

}  // namespace weft
