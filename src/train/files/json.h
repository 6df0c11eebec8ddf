// JSON values, and their text. Of this layer, json.cc alone calls the parser and the serializer of
// nlohmann/json: a compiler needs two to three seconds for each source that calls them.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace weft {

using Json = nlohmann::ordered_json;  // Objects keep the order in which their keys were added.

// The value that the text describes. For a text that is not JSON: a value of no type, for which is_object()
// and the like are false. Text from outside is checked before, see Note [Untrusted JSON].
Json ParseJson(std::string_view text);

inline constexpr int kOneLine = -1;

// The text of a value: on one line, or with a line for each member, indented by `indent` spaces a level.
// Bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const Json& value, int indent = kOneLine);

}  // namespace weft
