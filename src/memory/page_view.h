// Second mapping of pages that lie in several shared mappings, end to end.
//
// Thread safety: a value. Lifetime: the destructor unmaps the view; the pages stay where they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft::internal {

struct PageRange {
  std::byte* begin;  // Page-aligned, in a MAP_SHARED mapping.
  size_t bytes;      // Whole pages.
};

class PageView {
 public:
  // Errors: kResourceExhausted (the kernel refused; has its message).
  static absl::StatusOr<PageView> Map(absl::Span<const PageRange> ranges);
  PageView(PageView&& other) noexcept;
  PageView& operator=(PageView&& other) noexcept;
  ~PageView();

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  // Offset of `pointer` in the view, if the `bytes` from there on lie in it; nullopt otherwise.
  std::optional<uint64_t> OffsetOf(const void* pointer, size_t bytes) const;

 private:
  PageView(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_;
  size_t bytes_;
};

}  // namespace weft::internal
