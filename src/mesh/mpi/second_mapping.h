// A second mapping of shared memory, at addresses where its huge pages fit. See Note [Huge pages].
//
// Lifetime: the destructor unmaps it; the first mapping stays.
#pragma once

#include <cstddef>
#include <optional>

namespace weft::internal {

class SecondMapping {
 public:
  // Maps the pages of [begin, end) once more. Nothing if they are not part of one shared mapping, if huge
  // pages fit already, if there are none, if a limit makes addresses scarce (ulimit -v), or if the kernel
  // refuses.
  static std::optional<SecondMapping> ForHugePages(std::byte* begin, std::byte* end);
  SecondMapping(SecondMapping&& other) noexcept;
  SecondMapping& operator=(SecondMapping&& other) noexcept;
  ~SecondMapping();

  // The address here of the byte at `first`, an address in [begin, end) of the first mapping.
  std::byte* At(const std::byte* first) const { return base_ + (first - first_base_); }

 private:
  SecondMapping(const std::byte* first_base, std::byte* base, size_t bytes)
      : first_base_(first_base), base_(base), bytes_(bytes) {}

  const std::byte* first_base_;
  std::byte* base_;
  size_t bytes_;
};

}  // namespace weft::internal
