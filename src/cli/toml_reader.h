// Reader of the TOML files of --config: keys with values, without sections.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace weft {

struct TomlItem {
  std::string key;
  std::vector<std::string> values;  // One value, or the elements of a list.
  bool is_list = false;
  int line = 0;  // From 1.
};

// Reads `key = value` items, in the order of the text. Values are strings in double or single quotes,
// numbers, booleans, and lists of them; single words need no quotes. Values are not converted: 1e-2 stays
// "1e-2".
// Errors: kInvalidArgument (gives the line). Sections, dotted keys, tables, lists in lists and strings of
// several lines are errors. A repeated key is not.
absl::StatusOr<std::vector<TomlItem>> ReadToml(std::string_view text);

}  // namespace weft
