// Where documents begin and end in the data. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/types/span.h>

namespace weft {

// The lengths of the documents of windows that lie end to end, in their order. A document ends after
// `separator`, and where its window ends.
std::vector<int64_t> DocumentLengths(absl::Span<const int32_t> tokens, int64_t window, int64_t separator);

}  // namespace weft
