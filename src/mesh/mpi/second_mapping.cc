#include "src/mesh/mpi/second_mapping.h"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <utility>

#include "weft/core/huge_pages.h"
#include "weft/core/page_bytes.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/host_memory.h"

namespace weft::internal {
namespace {

// A mapping of this process.
struct Mapping {
  uintptr_t begin, end;
  uint64_t offset;  // In the file.
  bool is_shared;
};

std::optional<Mapping> MappingAt(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Mapping mapping = {};
    char sharing = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*3c%c %" SCNx64, &mapping.begin, &mapping.end,
                    &sharing, &mapping.offset) != 4) {
      continue;
    }
    mapping.is_shared = sharing == 's';
    if (mapping.begin <= address && address < mapping.end) return mapping;
  }
  return std::nullopt;
}

}  // namespace

std::optional<SecondMapping> SecondMapping::ForHugePages(std::byte* begin, std::byte* end) {
  if (HugePageBytes() == 0) return std::nullopt;
  // Limited addresses (ulimit -v) are left to allocations outside of node memory.
  if (FreeAddressSpace().value_or(0) != FreeMemory::kUnlimited) return std::nullopt;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const std::optional<Mapping> mapping = MappingAt(address);
  if (!mapping || !mapping->is_shared || reinterpret_cast<uintptr_t>(end) > mapping->end) return std::nullopt;
  std::byte* const first = begin - address % PageBytes();
  const size_t offset = mapping->offset + (reinterpret_cast<uintptr_t>(first) - mapping->begin);
  if (AlignToHugePage(first, offset) == first) return std::nullopt;
  const auto bytes = static_cast<size_t>(end - first);
  std::byte* const base = ReserveAddresses(bytes, offset);
  if (base == nullptr) return std::nullopt;
  SecondMapping second(first, base, bytes);
  if (!MapPagesAgain(first, bytes, base)) return std::nullopt;
  return second;
}

SecondMapping::SecondMapping(SecondMapping&& other) noexcept
    : first_base_(other.first_base_), base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}

SecondMapping& SecondMapping::operator=(SecondMapping&& other) noexcept {
  std::swap(first_base_, other.first_base_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SecondMapping::~SecondMapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace weft::internal
