#include "weft/core/huge_pages.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <sys/mman.h>

#include "weft/core/page_bytes.h"

namespace weft {
namespace {

constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers do not have.

size_t ReadHugePageBytes() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  size_t bytes = 0;
  return file >> bytes ? bytes : 0;
}

// The whole huge pages of a range.
struct Range {
  std::byte* begin;
  size_t bytes;
};

Range WholeHugePages(std::byte* begin, size_t bytes) {
  const size_t huge = HugePageBytes();
  if (huge == 0 || bytes < huge) return {begin, 0};
  std::byte* const first = AlignToHugePage(begin, 0);
  const auto skipped = static_cast<size_t>(first - begin);
  return {first, skipped < bytes ? (bytes - skipped) / huge * huge : 0};
}

}  // namespace

size_t HugePageBytes() {
  static const size_t bytes = ReadHugePageBytes();
  return bytes;
}

void AdviseHugePages(std::byte* begin, size_t bytes) {
  const Range range = WholeHugePages(begin, bytes);
  if (range.bytes > 0) madvise(range.begin, range.bytes, MADV_HUGEPAGE);
}

void PopulateHugePages(std::byte* begin, size_t bytes) {
  static std::atomic<bool> are_exhausted = false;
  const Range range = are_exhausted ? Range{begin, 0} : WholeHugePages(begin, bytes);
  for (size_t offset = 0; offset < range.bytes; offset += HugePageBytes()) {
    if (madvise(range.begin + offset, PageBytes(), MADV_POPULATE_WRITE) != 0) return;
  }
  if (range.bytes > 0 && madvise(range.begin, range.bytes, kCollapse) != 0 && errno == ENOMEM)
    are_exhausted = true;
}

std::byte* AlignToHugePage(std::byte* begin, size_t offset) {
  const size_t huge = HugePageBytes();
  return begin + (offset - reinterpret_cast<uintptr_t>(begin)) % huge;
}

std::byte* ReserveAddresses(size_t bytes, size_t offset) {
  const size_t page = PageBytes();
  const size_t mapped = (bytes + page - 1) / page * page;
  const size_t reserved = mapped + HugePageBytes();
  void* const memory = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(memory);
  std::byte* const base = HugePageBytes() > 0 ? AlignToHugePage(first, offset) : first;
  if (base > first) munmap(first, static_cast<size_t>(base - first));
  if (base + mapped < first + reserved)
    munmap(base + mapped, static_cast<size_t>(first + reserved - (base + mapped)));
  return base;
}

}  // namespace weft
