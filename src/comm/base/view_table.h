// Addresses of the source views of one rank of the node, by the elements for which they stand.
//
// Thread safety: immutable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <absl/types/span.h>

#include "weft/comm/source_views.h"

namespace weft {

class ViewTable {
 public:
  // `views`: those of any rank, whose ranges are the same on all. `data`: addresses of this rank's, by view;
  // null for zeros. `zeros`: a slice of zeros, which may be set up later. Both must outlive the table.
  ViewTable(absl::Span<const SourceView> views, std::vector<const std::byte*> data, size_t element_bytes,
            const std::vector<std::byte>& zeros)
      : views_(views), data_(std::move(data)), element_bytes_(element_bytes), zeros_(zeros) {}

  // Address of an element. Elements of the same view follow it, those of a view of zeros as far as a slice
  // reaches. REQUIRES: a view has the element.
  const std::byte* At(int64_t element) const {
    const auto* next =
        std::upper_bound(views_.begin(), views_.end(), element,
                         [](int64_t wanted, const SourceView& view) { return wanted < view.range.end(); });
    const std::byte* data = data_[static_cast<size_t>(next - views_.begin())];
    if (data == nullptr) return zeros_.data();
    return data + static_cast<size_t>(element - next->range.begin) * element_bytes_;
  }

 private:
  absl::Span<const SourceView> views_;
  std::vector<const std::byte*> data_;
  size_t element_bytes_;
  const std::vector<std::byte>& zeros_;
};

// Memory of a whole buffer: one block, or views.
struct WholeMemory {
  // Implicit: most buffers are blocks.
  WholeMemory(const std::byte* block) : base(block) {}
  WholeMemory(const ViewTable* table) : views(table) {}

  const std::byte* base = nullptr;
  const ViewTable* views = nullptr;  // Null: the block at `base`.
};

}  // namespace weft
