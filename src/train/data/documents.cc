#include "src/train/data/documents.h"

namespace weft {

std::vector<int64_t> DocumentLengths(absl::Span<const int32_t> tokens, int64_t window, int64_t separator) {
  std::vector<int64_t> lengths;
  int64_t length = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(tokens.size()); ++i) {
    ++length;
    if (tokens[static_cast<size_t>(i)] != separator && (i + 1) % window != 0) continue;
    lengths.push_back(length);
    length = 0;
  }
  return lengths;
}

}  // namespace weft
