// Training text of runs without --data: the project's documentation and license, embedded at build time.
#pragma once

#include <string_view>

namespace weft {

std::string_view EmbeddedText();

}  // namespace weft
