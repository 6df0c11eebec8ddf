// The HTML page of a report, page.html, which the build embeds. It has the places {{title}} and {{content}}.
#pragma once

#include <string_view>

namespace weft {

std::string_view PageTemplate();

}  // namespace weft
