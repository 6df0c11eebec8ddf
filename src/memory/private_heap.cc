#include "weft/memory/private_heap.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sys/mman.h>

#include <absl/memory/memory.h>

#include "src/memory/free_list.h"
#include "weft/core/page_bytes.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<PrivateHeap>> PrivateHeap::Create(size_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          /*fd=*/-1, /*offset=*/0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("the kernel refused to reserve addresses for ", bytes,
                                                     " bytes of a private heap: ", std::strerror(errno)));
  }
  return absl::WrapUnique(new PrivateHeap(static_cast<std::byte*>(base), bytes));
}

PrivateHeap::PrivateHeap(std::byte* base, size_t bytes)
    : base_(base), bytes_(bytes), process_(getpid()), blocks_(std::make_unique<internal::FreeList>(bytes)) {}

PrivateHeap::~PrivateHeap() { munmap(base_, bytes_); }

bool PrivateHeap::is_of_this_process() const { return getpid() == process_; }

std::byte* PrivateHeap::Allocate(size_t bytes) {
  if (!is_of_this_process()) return nullptr;
  const std::lock_guard lock(mutex_);
  const std::optional<uint64_t> offset = blocks_->Allocate(bytes);
  return offset ? base_ + *offset : nullptr;
}

void PrivateHeap::Free(std::byte* block) {
  if (!is_of_this_process()) return;
  const std::lock_guard lock(mutex_);
  blocks_->Free(static_cast<uint64_t>(block - base_));
}

bool PrivateHeap::Contains(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto begin = reinterpret_cast<uintptr_t>(base_);
  return address >= begin && address < begin + bytes_;
}

void PrivateHeap::ReleaseHoles() {
  if (!is_of_this_process()) return;
  const size_t page = PageBytes();
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, bytes] : blocks_->holes()) {
    const size_t begin = (offset + page - 1) / page * page;
    const size_t end = (offset + bytes) / page * page;
    if (begin < end) madvise(base_ + begin, end - begin, MADV_DONTNEED);
  }
}

size_t PrivateHeap::in_use_bytes() const {
  if (!is_of_this_process()) return 0;
  const std::lock_guard lock(mutex_);
  return blocks_->allocated_bytes();
}

}  // namespace weft
