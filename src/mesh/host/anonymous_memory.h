// Owner of an anonymous mapping: zeroed memory of this process whose pages are committed on first use.
//
// Lifetime: the destructor unmaps the memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include <absl/status/statusor.h>

namespace weft::internal {

class AnonymousMemory {
 public:
  // kMappedAgain: the same pages can be mapped at further addresses (NodeHeap::MapEndToEnd).
  enum class Sharing : uint8_t { kPrivate, kMappedAgain };
  // Errors: kResourceExhausted (the kernel refused).
  static absl::StatusOr<AnonymousMemory> Reserve(size_t bytes, Sharing sharing = Sharing::kPrivate);
  AnonymousMemory(AnonymousMemory&& other) noexcept;
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;
  ~AnonymousMemory();

  // Page-aligned.
  std::byte* base() const { return base_; }

 private:
  AnonymousMemory(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace weft::internal
