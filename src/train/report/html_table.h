// Tables of a report, as HTML.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace weft {

inline constexpr double kMiB = 1 << 20;
inline constexpr const char* kNone = "&ndash;";  // In place of a value that a run does not have.

// Rows of cells, the first of which names the row. Cells are HTML.
struct Table {
  std::string caption;  // Text.
  std::vector<std::string> head = {};
  std::vector<std::vector<std::string>> rows = {};
  std::set<size_t> differing = {};  // Rows that are marked.
  bool is_text = false;
};

std::string ToHtml(const Table& table);

}  // namespace weft
